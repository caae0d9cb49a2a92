"""Data and models from a local Hub: only the required files are downloaded, and results match the run's."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import save_for_hf

from tests.evaluation.evaluating import evaluate_here
from tests.hub.hub_client import environment
from tests.hub.hub_runs import make_run
from tests.hub.hub_server import Hub
from tests.support.datasets_on_disk import write_parquet
from tests.support.paths import ROOT
from timm_patchup.data.source import open_source
from timm_patchup.data.splits import take_stratified
from timm_patchup.errors import HubError
from timm_patchup.hub import evaluate, export, fetch
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.data_names import load_data_spec

DATA = "datasets/uoft-cs/cifar10"
TRAIN, TEST = "plain_text/train-00000-of-00001.parquet", "plain_text/test-00000-of-00001.parquet"
CIFAR = {
    name: value
    for name, value in load_recipe("cifar10_scarce_hard_patchup").to_dict().items()
    if name in ("dataset", "input_key", "mean", "std", "crop_padding", "mix")
}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A Hub with the test images of a small CIFAR-10; files of other splits are unreadable."""
    folder = write_parquet(tmp_path / "cifar10", {"test": 40}, input_key="img")
    files = {TEST: (folder / "data" / Path(TEST).name).read_bytes(), TRAIN: b"not read", "README.md": b"# not read"}
    with Hub() as hub:
        hub.add(DATA, {**files, "plain_text/extra-00000-of-00001.parquet": b"not read"})
        yield hub


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", **CIFAR).path


def publish(hub: Hub, repo: str, folder: Path) -> None:
    hub.add(repo, {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()})


def python(code: str, hub: Hub, cache: Path, **variables: str) -> Any:
    """Run code that prints JSON in a process with access to this Hub only, and return the result."""
    head = "import json, sys, timm_patchup\nhub = timm_patchup.hub\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code],
        env=environment(hub.endpoint, cache) | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_model_is_evaluated_from_the_hub(hub: Hub, run: Path, tmp_path: Path) -> None:
    publish(hub, "USER/NAME", export(run, tmp_path / "export"))
    page = (ROOT / "scripts" / "README.md").read_text()
    (line,) = re.findall(r"^python -c '(.*evaluate.*)' ", page, flags=re.MULTILINE)
    assert "USER/NAME" in line
    found = python(line.replace("print(", "print(json.dumps(") + ")", hub, tmp_path / "cache")
    where = ["--data-dir", tmp_path / "cifar10", "--output", tmp_path / "report"]
    ended = evaluate_here("--model", run, "--suite", "clean,affine", *where)
    assert ended.code == 0, ended.err
    stored = json.loads((tmp_path / "report" / "results.json").read_text())["suites"]
    assert found.keys() == {"clean"}
    assert found["clean"] == pytest.approx(stored["clean"]["run"]["values"], rel=1e-6)
    # Everything is cached now.
    hub.failures |= {"info": "drop", "resolve": "drop"}
    code = 'print(json.dumps(hub.evaluate("USER/NAME", ["clean", "affine"], batch_size=7)))'
    found = python(code, hub, tmp_path / "cache", HF_HUB_OFFLINE="1")
    for suite in ("clean", "affine"):
        assert found[suite] == pytest.approx(stored[suite]["run"]["values"], rel=1e-6)


def test_models_that_share_a_report_are_kept_apart(run: Path, tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "cifar10", {"test": 40}, input_key="img")
    torch.manual_seed(7)
    other = make_run(tmp_path / "other", **CIFAR).path
    call = {"data_dir": data, "output": tmp_path / "report"}
    first, second = evaluate(run, "clean,fgsm", **call), evaluate(other, "clean", **call)
    assert second.keys() == {"clean"}
    assert second["clean"]["nll"] != first["clean"]["nll"]
    assert second == evaluate(other, "clean", data_dir=data)


def test_only_files_of_the_splits_are_downloaded(hub: Hub, tmp_path: Path) -> None:
    code = f"""
first = hub.fetch("cifar10_wrn28_10", {str(tmp_path / "test")!r}, test_only=True)
both = hub.fetch("cifar10", {str(tmp_path / "both")!r})
names = [sorted(p.relative_to(f).as_posix() for p in f.rglob("*.*") if ".cache" not in p.parts) for f in (first, both)]
print(json.dumps(names))
"""
    assert python(code, hub, tmp_path / "cache") == [[TEST], [TEST, TRAIN]]
    hub.calls.clear()
    python(code, hub, tmp_path / "cache")
    assert hub.calls["resolve"] == 0, "existing files are not downloaded again"


def test_a_failed_fetch_is_one_line(hub: Hub, tmp_path: Path) -> None:
    code = """
import time
time.sleep = lambda seconds: None
def message_of(name):
    try:
        hub.fetch(name)
    except hub.HubError as error:
        return str(error)
print(json.dumps([message_of(name) for name in ("cifar10", "cifar100", "svhn", "tiny_imagenet")]))
"""
    hub.add("datasets/uoft-cs/cifar10", {"cifar-10.tar": b""})
    hub.add("datasets/ufldl-stanford/svhn", {f"cropped_digits/{split}-0.parquet": b"" for split in ("train", "test")})
    hub.failures["resolve"] = "drop"
    hub.add("datasets/zh-plus/tiny-imagenet", gated=True)
    layout, missing, dropped, gated = python(code, hub, tmp_path / "cache")
    assert layout == "dataset uoft-cs/cifar10 has no files train-*.parquet: its layout is not supported"
    assert missing.startswith("no dataset uoft-cs/cifar100 on the Hub, or no access to it: ")
    assert dropped.startswith("dataset ufldl-stanford/svhn is not cached and the Hub cannot be reached")
    assert gated.startswith("dataset zh-plus/tiny-imagenet is gated: accept its terms at https://")


def test_a_name_of_timm_on_imagenet(hub: Hub, tmp_path: Path) -> None:
    """Weights from timm's repository, images as these weights expect them, and only the validation set."""
    name = "test_resnet.r160_in1k"
    model = timm.create_model(name)
    save_for_hf(model, tmp_path / "weights", safe_serialization=True)
    hub.add(f"timm/{name}", {"model.safetensors": (tmp_path / "weights" / "model.safetensors").read_bytes()})
    folder = write_parquet(tmp_path / "imagenet", {"validation": 12}, classes=1000, size=200)
    file = "data/validation-00000-of-00001.parquet"
    hub.add("datasets/ILSVRC/imagenet-1k", {file: (folder / file).read_bytes(), "data/train-0.parquet": b"not read"})
    words = ["--model", name, "--data", "imagenet", "--limit", 8, "--batch-size", 3, "--output", tmp_path / "report"]
    done = subprocess.run(
        [sys.executable, "-m", "timm_patchup.evaluation", *map(str, words), "--threads", "1"],
        env=environment(hub.endpoint, tmp_path / "cache"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    entry = json.loads((tmp_path / "report" / "results.json").read_text())["suites"]["clean"][name]
    assert (entry["count"], entry["settings"]["input_size"], entry["settings"]["crop_pct"]) == (8, [3, 160, 160], 0.95)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    source = open_source(load_data_spec("imagenet"), "validation", folder)
    rows = take_stratified(source.labels, 8, seed=0)
    with torch.inference_mode():
        logits = model.eval()(torch.stack([transform(source.image(row)) for row in rows]))
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(source.labels[rows]).long()).item()
    assert entry["values"]["nll"] == pytest.approx(loss, rel=1e-4)


def test_wrong_calls(run: Path, tmp_path: Path) -> None:
    for call, message in (
        (lambda: fetch("cifar11"), "unknown data 'cifar11', choose from cifar10, .*; did you mean cifar10"),
        (lambda: fetch("fashion_mini"), "is part of the package"),
        (lambda: evaluate(run, "clena", data="fashion_mini"), "did you mean clean"),
        (lambda: evaluate(run, data="fashion_mini", limit=0), "limit must be a whole number of at least 1, got 0"),
        (lambda: evaluate(run, data="fashion_mini", seed=2**63), r"seed must be below 2\*\*63"),
        (lambda: evaluate("nothing"), "no such folder, and not a Hub name"),
        (lambda: evaluate(run, data="imagenet"), "has 10 classes"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_an_export_does_not_choose_the_data(tmp_path: Path) -> None:
    """A recipe that comes with weights may name any dataset; only the benchmarks' datasets are used."""
    run = make_run(tmp_path / "run", **(CIFAR | {"dataset": "hfds/someone/else"})).path
    folder = export(run, tmp_path / "export")
    with pytest.raises(HubError, match="was trained on hfds/someone/else, which is not a benchmark: choose the data"):
        evaluate(folder)
    (folder / "recipe.yaml").write_text("include: [cifar10_scarce_none]\n")
    with pytest.raises(HubError, match="unknown key 'include'"):
        evaluate(folder)


def test_foreign_models_need_data_and_keep_their_preprocessing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = timm.create_model("test_vit", num_classes=10, img_size=48)
    model.pretrained_cfg |= {"input_size": (3, 48, 48), "crop_mode": "squash", "fixed_input_size": True}
    save_for_hf(model, tmp_path / "vit", safe_serialization=True)
    with pytest.raises(HubError, match="has no recipe that names its data: choose it with data"):
        evaluate(tmp_path / "vit")
    found = evaluate(tmp_path / "vit", data="fashion_mini", limit=20, output=tmp_path / "report")
    assert found["clean"]["error"] is not None
    assert capsys.readouterr().out == "", "a function returns its results, only commands print"
    entry = json.loads((tmp_path / "report" / "results.json").read_text())["suites"]["clean"]["vit"]
    assert entry["settings"]["input_size"] == [3, 48, 48]
    assert entry["settings"]["crop_mode"] == "squash"
