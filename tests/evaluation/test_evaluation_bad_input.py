"""Wrong calls of the evaluation end with one clear line, and nothing is written."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf

from tests.support.datasets_on_disk import write_image_folder, write_parquet
from tests.support.paths import ROOT
from timm_patchup.evaluation import suites
from timm_patchup.system.locks import LOCK

from .evaluating import evaluate_here, refused, trained


@pytest.mark.parametrize("model", ["someone/nothing", "hf-hub:someone/nothing", "test_resnet.r160_in1k"])
def test_a_hub_out_of_reach_is_work_that_failed(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, for which a job script tries again; one wrong name among the models makes it a wrong call."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    flags = ["--data", "fashion_mini", "--output", tmp_path / "report"]
    ended = evaluate_here("--model", model, *flags)
    assert ended.code == 1
    assert "the Hub cannot be reached: check the" in ended.err
    assert "HF_HUB_OFFLINE" in ended.err
    assert "Traceback" not in ended.err
    assert evaluate_here("--model", model, "resnet55", *flags).code == 2


def test_wrong_calls_are_one_line_each(tmp_path: Path) -> None:
    run = trained()
    report = ["--output", tmp_path / "report"]
    assert "--model is required" in refused(*report)
    assert "--limit must be at least 1, got 0" in refused("--model", run, "--limit", 0, *report)
    assert "did you mean affine" in refused("--model", run, "--suite", "clean,afine", *report)
    assert "no such folder; a model on the Hub is hf-hub:USER/NAME" in refused("--model", tmp_path / "nothing", *report)
    assert "neither a run (recipe.yaml) nor a timm model" in refused("--model", tmp_path, *report)
    line = refused("--model", "preactresnet8", "--data", "fashion_mini", *report)
    assert "cannot load its pretrained weights" in line, "random weights are not evaluated"
    assert "did you mean resnet" in refused("--model", "resnet55", "--data", "fashion_mini", *report)
    line = refused("--model", run, "--data", "cifar11", *report)
    assert "data: unknown data 'cifar11', choose from cifar10, " in line
    assert "did you mean cifar10" in line
    line = refused("--model", "preactresnet8", "--data", "cifar11", *report)
    assert line.startswith("evaluate.py: data: unknown data"), "before weights are loaded, which may be a download"
    assert "timm has no such model" in refused("--model", "n" * 300, *report)
    assert "no such folder" in refused("--model", f"local-dir:{'n' * 300}", *report)
    line = refused("--model", run, "--data", "cifar100", *report)
    assert "has 10 classes, but hfds/uoft-cs/cifar100 has 100" in line
    baseline = ["--baseline", "x", "--limit", 20, *report]
    assert "baseline must be one of the models none_0, got x" in refused(
        "--model", run, "--suite", "corruptions", *baseline
    )
    assert "--baseline belongs to suite corruptions, but --suite is clean" in refused("--model", run, *baseline)
    assert "--corrupted belongs to suite corruptions" in refused("--model", run, "--corrupted", tmp_path, *report)
    assert "--seed must be below 2**63" in refused("--model", run, "--seed", 2**63, *report)
    assert "output must be a folder" in refused("--model", run, "--limit", 20, "--output", run / "recipe.yaml")
    assert "given twice" in refused("--model", run, run, *report)
    assert "did you mean --suite" in refused("--model", run, "--suit=clean", *report)
    assert "invalid choice: 'bits'" in refused("--model", run, "--eps-space", "bits", *report)
    assert not (tmp_path / "report").exists(), "nothing is written by a wrong call"


def test_missing_or_foreign_weights(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_bytes((trained() / "recipe.yaml").read_bytes())
    report = ["--output", tmp_path / "report"]
    assert "no model.safetensors yet" in refused("--model", tmp_path / "run", *report)
    (tmp_path / "run" / "model.safetensors").write_bytes(b"no weights at all")
    assert "damaged" in refused("--model", tmp_path / "run", *report)
    save_file({"stem.weight": torch.zeros(3)}, tmp_path / "run" / "model.safetensors")
    assert "does not fit the network" in refused("--model", tmp_path / "run", *report)
    save_for_hf(timm.create_model("test_resnet"), tmp_path / "pickled", safe_serialization=False)
    source = f"local-dir:{tmp_path / 'pickled'}"
    assert "never pickles" in refused("--model", source, "--data", "fashion_mini", *report)


@pytest.mark.parametrize("suite", [name for name in suites.SUITES if name != "corruptions"])
def test_logits_that_are_not_finite(suite: str, tmp_path: Path) -> None:
    """Corruptions are left out: they count errors with the same function as the affine suite."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "recipe.yaml").write_bytes((trained() / "recipe.yaml").read_bytes())
    weights = load_file(trained() / "model.safetensors")
    weights[next(name for name in weights if name.endswith("weight"))].fill_(float("nan"))
    save_file(weights, tmp_path / "broken" / "model.safetensors")
    call = ["--model", tmp_path / "broken", "--suite", suite, "--limit", 20, "--output", tmp_path / "report"]
    assert "broken returns logits that are not finite" in refused(*call)
    assert [path.name for path in (tmp_path / "report").iterdir()] == [LOCK]


def test_data_that_cannot_be_evaluated(tmp_path: Path) -> None:
    report = ["--output", tmp_path / "report"]
    one_class = write_parquet(tmp_path / "one", {"train": 4, "test": 4}, classes=10)
    line = refused("--model", trained(), "--data-dir", one_class, "--limit", 1, *report)
    assert "are all of class" in line
    folder = write_image_folder(tmp_path / "three", {"train": 3, "val": 3}, classes=3)
    line = refused("--model", trained(), "--data-dir", folder, *report)
    assert "the data has 3 classes, but num_classes is 10" in line
    empty = write_parquet(tmp_path / "empty", {"train": 4, "test": 0})
    assert "split 'test' is empty" in refused("--model", trained(), "--data-dir", empty, *report)


def test_classes_in_another_order_are_refused(tmp_path: Path) -> None:
    """The numbers would belong to other classes: folders of other classes, sorted, shift all numbers."""
    data = write_parquet(tmp_path / "data", {"train": 20, "test": 20}, classes=10)
    for name, shift in (("same", 0), ("shifted", 1)):
        run = tmp_path / name
        shutil.copytree(trained(), run)
        results = json.loads((run / "results.json").read_text())
        results["class_names"] = [f"class {number + shift}" for number in range(10)]
        (run / "results.json").write_text(json.dumps(results))
    call = ["--data-dir", data, "--output", tmp_path / "report"]
    line = refused("--model", tmp_path / "same", tmp_path / "shifted", *call)
    assert "class 'class 1' is number 1 in the test data, but 0 in shifted" in line
    assert not (tmp_path / "report").exists()
    assert evaluate_here("--model", tmp_path / "same", *call).code == 0
    assert evaluate_here("--model", trained(), *call).code == 0, "their own names may be other spellings"


def test_small_images_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    text = (trained() / "recipe.yaml").read_text().replace("input_size: [3, 32, 32]", "input_size: [3, 28, 28]")
    (tmp_path / "small" / "recipe.yaml").write_text(text)
    (tmp_path / "small" / "model.safetensors").write_bytes((trained() / "model.safetensors").read_bytes())
    call = ["--model", tmp_path / "small", "--limit", 20, "--output", tmp_path / "report"]
    assert "needs images of at least 32 x 32 pixels, got 28 x 28" in refused(*call, "--suite", "clean,corruptions")
    assert not (tmp_path / "report").exists()
    assert evaluate_here(*call, "--suite", "clean").code == 0


def test_runs_on_different_data_need_the_data_flag(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    text = (trained() / "recipe.yaml").read_text().replace("val_split: test", "val_split: train")
    (tmp_path / "other" / "recipe.yaml").write_text(text)
    (tmp_path / "other" / "model.safetensors").write_bytes((trained() / "model.safetensors").read_bytes())
    runs = ["--model", trained(), tmp_path / "other", "--limit", 20, "--output", tmp_path / "report"]
    assert "differ in val_split" in refused(*runs)
    assert evaluate_here(*runs, "--data", "fashion_mini").code == 0


def test_results_of_other_data_are_kept_apart(tmp_path: Path) -> None:
    call = ["--model", trained(), "--output", tmp_path]
    assert evaluate_here(*call, "--limit", 20).code == 0
    line = refused(*call, "--limit", 30)
    assert "samples 20 instead of 30" in line
    assert "--force" in line
    assert evaluate_here(*call, "--limit", 30, "--force").code == 0
    (tmp_path / "results.json").write_text("{")
    assert "results.json is damaged" in refused(*call, "--limit", 30)


@pytest.mark.parametrize(("suite", "package"), [("attacks", "foolbox"), ("corruptions", "imagecorruptions")])
def test_optional_packages(suite: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = suites.find_spec
    monkeypatch.setattr(suites, "find_spec", lambda name: None if name == package else real(name))
    line = refused("--model", trained(), "--suite", suite, "--output", tmp_path / "report")
    assert f"suite {suite} needs {package}: pip install 'timm-patchup[robustness]'" in line


def test_importing_the_package_stays_light() -> None:
    code = "import sys, timm_patchup; heavy = {'foolbox', 'imagecorruptions', 'matplotlib', 'datasets', 'accelerate'}"
    code += "; assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    code += "; import timm_patchup.evaluation.run; light = {'foolbox', 'imagecorruptions', 'matplotlib'}"
    code += "; assert not light & set(sys.modules), light & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)
