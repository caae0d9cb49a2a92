"""Exports: their files, and that timm loads them bit for bit."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from tests.evaluation.evaluating import evaluate_here
from tests.hub.hub_runs import FILES, REPORT, add_report, make_run, names_in
from timm_patchup.errors import HubError
from timm_patchup.hub import export, load
from timm_patchup.recipe import load_recipe
from timm_patchup.runs import weights
from timm_patchup.runs.finished import FinishedRun
from timm_patchup.runs.load import load_with_recipe

NETS = {
    "ours": {},
    "ours with arguments": {"model": "preactresnet18", "model_kwargs": {"final_norm": False}},
    "grey": {"input_size": [1, 28, 28], "mean": [0.3], "std": [0.4]},
    "timm's": {"model": "test_resnet", "num_classes": 7, "input_size": [3, 48, 40], "crop_padding": None},
    "timm's, large images": {"model": "test_vit", "input_size": [3, 96, 96], "model_kwargs": {"img_size": 96}},
}


@pytest.mark.parametrize("keys", NETS.values(), ids=NETS)
def test_logits_after_a_round_trip_are_the_same_bits(keys: dict, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", **keys)
    out = export(run.path, tmp_path / "out")
    assert names_in(out) == FILES
    recipe = run.recipe()
    images = torch.randn(3, *recipe.input_size)
    models = {
        "run": load(run.path),
        "export": load(out),
        "timm": timm.create_model(f"local-dir:{out}", pretrained=True).eval(),
    }
    logits = {name: model(images) for name, model in models.items()}
    assert logits["run"].shape == (3, recipe.num_classes)
    assert torch.equal(logits["run"], logits["export"])
    assert torch.equal(logits["run"], logits["timm"])
    # The preprocessing is the run's, however the model was loaded.
    configs = [json.loads(json.dumps(timm.data.resolve_model_data_config(model))) for model in models.values()]
    assert configs[0] == configs[1] == configs[2]
    assert configs[0]["input_size"] == recipe.input_size
    assert configs[0]["mean"] == recipe.mean


def test_exports_of_two_runs_to_one_folder_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share a temporary name: at once, each would write its files among the other's."""
    at_work: list[str] = []
    met: list[str] = []

    def write_files(folder: Path, run: FinishedRun, *rest: Any) -> None:
        met.extend(at_work)
        at_work.append(run.path.name)
        real(folder, run, *rest)
        time.sleep(0.3)  # the other is at work, too, unless it waits
        at_work.remove(run.path.name)

    module = sys.modules[export.__module__]  # its name in the package is the function's
    real = module.write_files
    monkeypatch.setattr(module, "write_files", write_files)
    runs = [make_run(tmp_path / f"run{seed}", seed=seed).path for seed in (1, 2)]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda run: export(run, tmp_path / "out"), runs)) == [tmp_path / "out"] * 2
    assert met == []
    recipe = load_recipe(tmp_path / "out" / "recipe.yaml")
    logits = [load(path)(torch.ones(1, *recipe.input_size)) for path in (tmp_path / "out", runs[recipe.seed - 1])]
    assert torch.equal(*logits)


def test_an_export_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    export(run.path, ".")
    assert names_in(tmp_path / "out") == FILES


def test_timms_transform_gives_the_images_of_the_run(tmp_path: Path) -> None:
    from timm_patchup.data.finish import Finish
    from timm_patchup.data.images import EVALUATION
    from timm_patchup.data.loader import load_data
    from timm_patchup.data.source import open_source
    from timm_patchup.recipe.parts import DataSpec

    run = make_run(tmp_path / "run", limit=100, batch_size=10)
    model = timm.create_model(f"local-dir:{export(run.path, tmp_path / 'out')}", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    recipe = run.recipe()
    data = load_data(recipe)
    source = open_source(DataSpec.of(recipe), recipe.val_split)
    pixels = data.test.__getitems__([(EVALUATION, 0)]).pixels
    wanted = Finish(data.test.spec, None, torch.device("cpu"))(pixels)[0]
    candidates = [transform(source.image(index, "RGB")) for index in range(len(source.labels))]
    assert any(torch.allclose(candidate, wanted, atol=1e-6) for candidate in candidates)


def test_a_run_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    read: list[str] = []
    open_path = Path.open

    def opened(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.parent == run.path:
            read.append(path.name)
        return open_path(path, *arguments, **options)

    def loaded(path: Path) -> Any:
        read.append(path.name)
        return load_file(path)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(Path, "read_text", lambda path, **options: opened(path, **options).read())
    monkeypatch.setattr(weights, "load_file", loaded)
    export(run.path, tmp_path / "out")
    assert sorted(read) == ["model.safetensors", "recipe.yaml", "results.json", "summary.csv"]


def test_the_configuration(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model="test_resnet", mix_gamma=0.3, results={"class_names": list("abcdefghij")})
    config = json.loads((export(run.path, tmp_path / "out") / "config.json").read_text())
    assert config["architecture"] == "test_resnet"
    assert config["num_classes"] == 10
    assert config["label_names"] == list("abcdefghij")
    cfg = config["pretrained_cfg"]
    assert cfg["tag"] == "hard_patchup_fashion_mini"
    assert cfg["input_size"] == [3, 32, 32]
    assert cfg["license"] == "apache-2.0"
    assert cfg["crop_mode"] == "squash"
    assert not {"url", "file", "hf_hub_id", "test_input_size", "origin_url"} & cfg.keys()
    assert config["patchup"]["method"] == "hard_patchup"
    assert config["patchup"]["settings"]["gamma"] == 0.3
    assert "needs" not in config["patchup"]
    assert load_recipe(tmp_path / "out" / "recipe.yaml") == run.recipe()


def test_the_card(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", results={"weights": "average (EMA)"})
    add_report(run)
    out = export(run.path, tmp_path / "out", license="mit")
    assert names_in(out) == FILES | {f"report/{name}" for name in REPORT}
    card = ModelCard.load(out / "README.md")
    assert card.data.library_name == "timm"
    assert card.data.license == "mit"
    assert card.data.datasets == ["zalando-datasets/fashion_mnist"]
    assert {"timm", "patchup", "hard-patchup"} <= set(card.data.tags)
    results = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert results == {"top-1 accuracy, %": 59.75, "top-5 accuracy, %": 90.5}
    assert "import timm_patchup  # registers preactresnet8" in card.text
    assert "Unknown model (preactresnet8)" in card.text
    assert "the exponential moving average (EMA)" in card.text
    assert all(f"report/{name}" in card.text for name in REPORT)
    plain = make_run(tmp_path / "plain", model="test_resnet", dataset="hfds/uoft-cs/cifar10")
    text = (export(plain.path, tmp_path / "plain_out") / "README.md").read_text()
    assert "import timm_patchup" not in text
    assert "without averaging" in text
    assert "- uoft-cs/cifar10" in text


def test_several_methods_are_in_card_and_configuration(tmp_path: Path) -> None:
    own = {"hard_patchup": {"block_size": 7}, "cutmix": {"alpha": 1.0, "prob": 1.0}}
    run = make_run(tmp_path / "run", mix=["hard_patchup", "cutmix"], mix_weights=[2, 1], mix_settings=own)
    folder = export(run.path, tmp_path / "hub")
    card = ModelCard.load(folder / "README.md")
    assert "trained with `hard_patchup` or `cutmix`, one of them per batch, on " in card.text
    assert "| method | hard_patchup, weight 2: block_size 7, " in card.text
    assert "| method | cutmix, weight 1: alpha 1.0, prob 1.0 |" in card.text
    assert {"hard-patchup", "cutmix", "patchup"} <= set(card.data.tags)
    config = json.loads((folder / "config.json").read_text())
    assert config["pretrained_cfg"]["tag"] == "hard_patchup_cutmix_fashion_mini"
    section = config["patchup"]
    assert (section["method"], section["mix_weights"]) == (["hard_patchup", "cutmix"], [2.0, 1.0])
    assert section["settings"]["cutmix"] == {"alpha": 1.0, "prob": 1.0}
    assert load_recipe(folder / "recipe.yaml") == run.recipe()


def test_weights_load_with_the_recipe_of_another_tool(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model="test_resnet")
    out = export(run.path, tmp_path / "out")
    expected = load(out).state_dict()
    for text in ("!Modifier\n- of: another tool\n", (out / "recipe.yaml").read_text() + "key_of_a_later_version: 1\n"):
        (out / "recipe.yaml").write_text(text)
        assert all(torch.equal(value, expected[name]) for name, value in load(out).state_dict().items())
    with pytest.raises(HubError, match="unknown key 'key_of_a_later_version'"):
        load_with_recipe(f"local-dir:{out}")
    config = json.loads((out / "config.json").read_text())
    del config["patchup"]
    (out / "config.json").write_text(json.dumps(config))
    assert load_with_recipe(f"local-dir:{out}").recipe is None, "what others call recipe.yaml"


def test_an_export_is_deterministic_and_replaces_only_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    out = export(run.path, run.path / "hub")
    first = {name: (out / name).read_bytes() for name in names_in(out)}
    export(run.path, out)
    assert first == {name: (out / name).read_bytes() for name in names_in(out)}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(HubError, match="has files that are not from an export"):
        export(run.path, tmp_path / "mine")
    assert names_in(tmp_path / "mine") == {"thesis.tex"}
    with pytest.raises(HubError, match="has files that are not from an export"):
        export(run.path, run.path)


def test_files_edited_or_added_since_an_export_are_not_replaced(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    out = export(run.path, run.path / "hub")
    (out / ".git").mkdir()
    for name in ("README.md", "notebook.ipynb", ".git/HEAD"):
        before = (out / name).read_bytes() if (out / name).exists() else None
        (out / name).write_text("years of work")
        with pytest.raises(HubError, match=rf"hub was changed since it was exported \({name}\): push that folder"):
            export(run.path, out)
        assert (out / name).read_text() == "years of work"
        if before is None:
            (out / name).unlink()
        else:
            (out / name).write_bytes(before)
    export(run.path, out)
    (out / ".exported.json").unlink()
    with pytest.raises(HubError, match="has files that are not from an export"):  # such as a clone of the repository
        export(run.path, out)


def test_the_card_shows_the_evaluation_of_these_weights(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model="test_resnet")
    call = ["--model", run.path, "--suite", "clean,fgsm", "--limit", 20, "--output", run.path / "report"]
    assert evaluate_here(*call).code == 0
    out = export(run.path, tmp_path / "out")
    text = ModelCard.load(out / "README.md").text
    error = json.loads((out / "report" / "results.json").read_text())["suites"]["clean"]["run"]["values"]["error"]
    assert "#### Clean test images" in text
    assert f"| run | {error:.3f} |" in text
    assert text.count("![fgsm](report/fgsm.png)") == 1
    assert (out / "report" / "fgsm.png").is_file()
    assert "- [report/results.json](report/results.json)" in text
    assert text.count("\n# ") == 1, "one title"
    trained = load_file(run.path / "model.safetensors")
    save_file({name: value + 1 for name, value in trained.items()}, run.path / "model.safetensors")
    with pytest.raises(
        HubError, match=r"report is a report on other weights than the run's: remove it, or run python -m"
    ):
        export(run.path, tmp_path / "out")
    assert ModelCard.load(out / "README.md").text == text, "the earlier export is unchanged"
