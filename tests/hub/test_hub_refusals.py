"""What is not exported and not loaded: unfinished, damaged or untested, in one line each."""

import json
from pathlib import Path

import pytest

from tests.hub.hub_runs import make_run
from timm_patchup.errors import HubError
from timm_patchup.hub import export, load, push
from timm_patchup.system.files import checksum


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(HubError, match="has no run"):
        export(tmp_path / "nothing", tmp_path / "out")
    (run.path / "results.json").rename(tmp_path / "results.json")
    with pytest.raises(HubError, match=r"is not finished: resume it \(train.py --resume"):
        export(run.path, tmp_path / "out")
    (tmp_path / "results.json").rename(run.path / "results.json")
    text = (run.path / "recipe.yaml").read_text()
    (run.path / "recipe.yaml").write_text(text.replace("preactresnet8", "preactresnet18"))
    with pytest.raises(HubError, match="does not fit the network"):
        export(run.path, tmp_path / "out")
    (run.path / "recipe.yaml").write_text(text)
    (run.path / "report").mkdir()
    (run.path / "report" / "plot.png").write_bytes(b"no picture")
    with pytest.raises(HubError, match="not a PNG"):
        export(run.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".partial-*"))


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    out = export(make_run(tmp_path / "run").path, tmp_path / "out")
    config = json.loads((out / "config.json").read_text())

    def refused(message: str, **changed: object) -> None:
        (out / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(HubError, match=message):
            load(out)

    refused("has no model 'preactresnet9000'", architecture="preactresnet9000")
    refused("asks for checkpoint_path", model_args={"checkpoint_path": "evil.pth"})
    refused("asks for pretrained_cfg_overlay", model_args={"pretrained_cfg_overlay": {"file": "evil.pth"}})
    refused("has no architecture", architecture=None)
    classes = {name: value for name, value in config["model_args"].items() if name != "num_classes"}
    refused("states 11 classes, model.safetensors has 10", num_classes=11, model_args=classes | {"num_classes": 10})
    refused("does not fit the network", num_classes=11, model_args=classes)
    refused("does not fit the network", model_args=classes | {"num_classes": 11})
    refused("cannot create 'preactresnet8'", model_args={"wings": 2})
    (out / "config.json").write_text(json.dumps(config))
    (out / "model.safetensors").rename(out / "pytorch_model.bin")
    with pytest.raises(HubError, match="never pickles"):
        load(out)
    with pytest.raises(HubError, match="nowhere: no such folder, and not a Hub name, which is USER/NAME"):
        load("nowhere")
    with pytest.raises(HubError, match="neither a run"):
        load(tmp_path)


def test_weights_that_are_not_what_was_tested_are_not_exported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    stored = json.loads((run.path / "results.json").read_text())
    kept = run.path / "model.safetensors"
    (run.path / "results.json").write_text(json.dumps(stored | {"weights_sha256": checksum(kept)}))
    export(run.path, tmp_path / "out")
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    kept.write_bytes(content)
    with pytest.raises(HubError, match="is damaged, or is not what was tested"):
        export(run.path, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("content", ["", "{", '{"test": 3}', '{"test": {"error": NaN}}', "[" * 100_000])
@pytest.mark.parametrize("name", ["results.json", "summary.csv", "recipe.yaml"])
def test_a_damaged_file_of_a_run_is_one_line(tmp_path: Path, name: str, content: str) -> None:
    run = make_run(tmp_path / "run")
    (run.path / name).write_text(content)
    with pytest.raises(HubError) as caught:
        export(run.path, tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 1
    assert name in str(caught.value)


HUGE: dict[str, dict[str, object]] = {
    "input_size": {"input_size": [3, 100_000, 100_000]},
    "test_input_size": {"test_input_size": [3, 32, 100_000]},
    "min_input_size": {"min_input_size": [3, 100_000, 32]},
    "crop_pct": {"crop_pct": 1e-9},
    "test_crop_pct": {"test_crop_pct": 1e-9, "test_input_size": [3, 32, 32]},
}


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("architecture", ["preactresnet8", "vit_tiny_patch16_224"])
def test_images_that_fit_into_no_memory_are_refused(tmp_path: Path, name: str, architecture: str) -> None:
    """Before the network is made: one of a fixed image size would be as large."""
    out = export(make_run(tmp_path / "run").path, tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    config["architecture"] = architecture
    config["pretrained_cfg"] |= HUGE[name]
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(HubError, match=rf"config\.json: {name} ") as caught:
        load(out)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("stated", [7, 0, 11])
def test_classes_that_do_not_fit_the_weights_are_refused(tmp_path: Path, stated: int) -> None:
    """Timm drops the classifier silently."""
    out = export(make_run(tmp_path / "run").path, tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    config["num_classes"] = stated
    (out / "config.json").write_text(json.dumps(config))
    for call in (lambda: load(out), lambda: push(out, "me/x")):
        with pytest.raises(HubError):
            call()
