"""Fine-tuning on the user's images: from a folder to a model, with what was inferred recorded and no path in it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

from tests.evaluation.evaluating import evaluate_here
from tests.support.datasets_on_disk import write_image_folder, write_parquet
from tests.support.training import Ended, train_here
from timm_patchup.cli.for_timm import for_timm
from timm_patchup.core.mixer import Mixer
from timm_patchup.errors import DataError, UserError
from timm_patchup.hub import export, load, predict
from timm_patchup.methods.cutmix import CutMix
from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.runs.folder import RunFolder
from timm_patchup.runs.local import recall
from timm_patchup.training.build import build_criterion, build_model, build_optimizer, model_problems
from timm_patchup.training.pretrained import class_weights

MODEL = "test_resnet.r160_in1k"
Finetune = Callable[..., Ended]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A file of "pretrained" weights for ImageNet's classes."""
    torch.manual_seed(1)
    path = tmp_path / "files" / "weights.safetensors"
    path.parent.mkdir()
    save_file(timm.create_model(MODEL).state_dict(), path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_image_folder(tmp_path / "holiday-photos", {"train": 30, "val": 9, "test": 9})


@pytest.fixture
def finetune(tmp_path: Path, photos: Path, weights: Path) -> Finetune:
    """Run the command of the README on a tiny model."""

    def run(*flags: object, recipe: str = "finetune_none") -> Ended:
        own = ["--recipe", recipe, "--model", MODEL, "--pretrained-path", weights, "--epochs", 2, "--batch-size", 10]
        size = ["--input-size", 3, 32, 32, "--threads", 1, "--workers", 0, "--output", tmp_path / "runs"]
        return train_here(*own, *size, *flags)

    return run


def test_from_a_folder_to_predictions(finetune: Finetune, photos: Path, weights: Path, tmp_path: Path) -> None:
    ended = finetune("--data-dir", photos, recipe="finetune_hard_patchup")
    assert ended.code == 0, ended.err
    lines = [line for line in ended.out.splitlines() if line.startswith("inferred: ")]
    assert lines == [
        "inferred: 3 classes (n000, n001, n002) from holiday-photos; tested on test; epoch chosen on val; "
        "mean 0.5 0.5 0.5, std 0.5 0.5 0.5, crop 0.95, resized bilinear from test_resnet.r160_in1k"
    ]
    folder = tmp_path / "runs" / "finetune_hard_patchup"
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert "auto" not in recipe.values()
    assert recipe["dataset"] == "holiday-photos"
    assert recipe["pretrained_path"] == "weights.safetensors"
    assert (recipe["num_classes"], recipe["select_split"], recipe["crop_pct"]) == (3, "val", 0.95)
    results = json.loads((folder / "results.json").read_text())
    assert results["class_names"] == ["n000", "n001", "n002"]
    matrix = torch.tensor(results["confusion"])
    assert matrix.sum(dim=1).tolist() == [3, 3, 3]
    assert 100 * matrix.trace() / 9 == pytest.approx(results["test"]["top1"])
    assert (folder / "confusion.png").read_bytes().startswith(b"\x89PNG")

    exported = export(folder, tmp_path / "export")
    card = (exported / "README.md").read_text()
    assert "holiday-photos" in card
    assert "n000, n001, n002" in card
    assert "weights.safetensors" in card
    assert "ImageNet" not in card.replace("n000", "")
    assert "base_model" not in card
    assert (exported / "confusion.png").is_file()
    for path in [*exported.rglob("*"), *(path for path in folder.iterdir() if path.is_file())]:
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes(), path.name

    tested = sorted((photos / "test").rglob("*.png"))
    seen = [list(predict(load(where), tested)) for where in (folder, exported)]
    assert seen[0] == seen[1], "a run and its export predict the same"
    right = sum(one.label == Path(one.path).parent.name for one in seen[0])
    assert right == matrix.trace(), "as the test of the run did"
    assert sum(seen[0][0].probabilities) == pytest.approx(1.0)


def test_a_run_and_its_export_are_evaluated_on_the_same_images(
    finetune: Finetune, photos: Path, tmp_path: Path
) -> None:
    shutil.rmtree(photos / "val")
    shutil.rmtree(photos / "test")
    assert finetune("--data-dir", photos).code == 0
    run = tmp_path / "runs" / "finetune_none"
    exported = export(run, tmp_path / "export")
    error = json.loads((run / "results.json").read_text())["test"]["error"]
    assert evaluate_here("--model", run, "--output", tmp_path / "a").code == 0
    ended = evaluate_here("--model", exported, "--output", tmp_path / "b")
    assert ended.code == 2
    assert "trained on holiday-photos, which is not a benchmark" in ended.err
    assert evaluate_here("--model", exported, "--output", tmp_path / "b", "--data-dir", photos).code == 0
    for report in ("a", "b"):
        results = json.loads((tmp_path / report / "results.json").read_text())
        (entry,) = results["suites"]["clean"].values()
        assert (entry["count"], entry["values"]["error"]) == (6, pytest.approx(error))


def test_timms_own_script_needs_a_resolved_recipe() -> None:
    with pytest.raises(UserError, match=r"leaves dataset, .* to your images: train it once with scripts/train.py"):
        for_timm(load_recipe("finetune_none"), known=[], num_processes=1)


def test_pretrained_weights_are_used_and_the_classifier_starts_at_zero(weights: Path) -> None:
    found = {"num_classes": 3, "input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}
    recipe = load_recipe("finetune_none", {**found, "model": MODEL, "pretrained_path": str(weights)})
    model = build_model(recipe, weights)
    stored, own = load_file(weights), model.state_dict()
    body = [name for name in own if not name.startswith("fc.")]
    assert len(body) > 20
    assert all(torch.equal(own[name], stored[name]) for name in body)
    assert not own["fc.weight"].any()
    assert not own["fc.bias"].any()
    assert "state_dict" not in model.pretrained_cfg, "the weights are not kept twice"


@pytest.mark.parametrize("classes", [3, 5])
def test_a_classifier_of_as_many_classes_is_kept(tmp_path: Path, classes: int) -> None:
    """The weights of an earlier run have fewer classes than timm's, which timm alone would take for other classes."""
    trained = timm.create_model(MODEL, num_classes=3)
    save_file(trained.state_dict(), tmp_path / "model.safetensors")
    keys = {"model": MODEL, "pretrained": True, "num_classes": classes, "input_size": [3, 32, 32]}
    model = build_model(Recipe(**keys), tmp_path / "model.safetensors")
    assert model.fc.weight.shape[0] == classes
    assert torch.equal(model.fc.weight, trained.fc.weight) is (classes == 3)
    assert torch.equal(model.conv1[0].weight, trained.conv1[0].weight)


def test_a_pickle_is_read_only_if_it_holds_tensors(weights: Path, tmp_path: Path) -> None:
    recipe = load_recipe("finetune_none", {"num_classes": 3, "input_size": [3, 32, 32], "model": MODEL})
    plain, code = tmp_path / "plain.pth", tmp_path / "code.pth"
    torch.save({"state_dict": load_file(weights)}, plain)
    build_model(recipe, plain)
    torch.save({"state_dict": load_file(weights), "call": shutil.rmtree}, code)
    with pytest.raises(UserError, match=r"code.pth has more than tensors, so it is not loaded: if you trust the file"):
        build_model(recipe, code)
    (tmp_path / "other.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match=r"other.safetensors cannot be read"):
        build_model(recipe, tmp_path / "other.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "foreign.safetensors")
    with pytest.raises(
        UserError, match=r"foreign.safetensors has 0 of the .* weights of ResNet: it is a file of another"
    ):
        build_model(recipe, tmp_path / "foreign.safetensors")


def test_small_images_are_resized_whole_whatever_the_model_crops(finetune: Finetune, photos: Path) -> None:
    """What the model states about crops has no effect then, and nobody gave it."""
    ended = finetune("--data-dir", photos, "--crop-padding", 4, "--experiment", "small", "--epochs", 1)
    assert ended.code == 0, ended.err
    assert "std 0.5 0.5 0.5, resized bilinear from" in ended.out


def test_resuming_finds_data_and_weights_again(finetune: Finetune, photos: Path, weights: Path, tmp_path: Path) -> None:
    assert finetune("--data-dir", photos, "--experiment", "whole").code == 0
    assert finetune("--data-dir", photos, "--experiment", "a").code == 0
    run = tmp_path / "runs" / "a"
    assert recall(RunFolder(run)).data_dir == str(photos.resolve())
    (run / "results.json").unlink()
    shutil.rmtree(sorted((run / "checkpoints").glob("step-*"))[-1])
    ended = train_here("--resume", run, "--threads", 1)
    assert ended.code == 0, ended.err
    assert "resumed from step-00000003: epoch 2" in ended.out
    assert (run / "summary.csv").read_bytes() == (tmp_path / "runs" / "whole" / "summary.csv").read_bytes()
    again = finetune("--experiment", "a", "--resume", "--data-dir", photos)
    assert again.code == 0, again.err
    assert "already finished" in again.out

    (run / "results.json").unlink()
    ended = finetune("--experiment", "a", "--resume", "--data-dir", photos, "--num-classes", 4)
    assert "was started with num_classes 3, got 4" in ended.err
    photos.rename(tmp_path / "moved")
    ended = train_here("--resume", run, "--threads", 1)
    assert ended.code == 2
    assert "give data_dir (--data-dir)" in ended.err
    ended = train_here("--resume", run, "--threads", 1, "--data-dir", tmp_path / "moved")
    assert ended.code == 0, ended.err


def test_weights_that_are_not_there(finetune: Finetune, photos: Path, tmp_path: Path) -> None:
    ended = finetune("--data-dir", photos, "--pretrained-path", tmp_path / "no.safetensors")
    assert ended.code == 2
    assert "no.safetensors: no such file" in ended.err
    assert not (tmp_path / "runs").exists()


def test_a_dataset_in_the_layout_of_the_hub(finetune: Finetune, tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "hub-photos", {"train": 40, "test": 10}, classes=2)
    ended = finetune("--data-dir", folder, "--epochs", 1)
    assert ended.code == 0, ended.err
    assert "inferred: 2 classes (class 0, class 1) from hub-photos; tested on test; epoch chosen on 10%" in ended.out


def test_frozen_modules_and_layer_decay_are_those_of_timm() -> None:
    keys = {"num_classes": 3, "input_size": [3, 32, 32], "model": MODEL, "pretrained": False}
    recipe = load_recipe("finetune_none", {**keys, "freeze": ["conv1", "layer1"], "layer_decay": 0.5})
    model = build_model(recipe)
    frozen = {name.split(".")[0] for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"conv1", "layer1"}
    assert timm.create_model(MODEL, num_classes=3).state_dict().keys() == model.state_dict().keys()
    optimizer = build_optimizer(recipe, model)
    scales = {group["lr_scale"] for group in optimizer.param_groups}
    assert max(scales) == 1.0
    assert len(scales) > 2
    assert all(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"])
    unknown = Recipe.from_dict(_complete(recipe) | {"freeze": ["layer9"]})
    assert model_problems(unknown)[0].startswith("freeze: the model has no module layer9; its parts are conv1, bn1")
    everything = [name for name, _ in model.named_children()]
    assert "nothing is left to train" in model_problems(Recipe.from_dict(_complete(recipe) | {"freeze": everything}))[0]


def _complete(recipe: Recipe) -> dict[str, object]:
    """Return the keys of a recipe, with a value for each that is still auto."""
    defaults = Recipe().to_dict()
    return recipe.to_dict() | {name: defaults[name] for name in recipe.unresolved}


def test_balanced_weights_average_one() -> None:
    labels = torch.tensor([0] * 6 + [1] * 3 + [2])
    weight = class_weights("balanced", labels, 3)
    assert weight is not None
    assert weight.tolist() == pytest.approx([10 / 18, 10 / 9, 10 / 3])
    assert weight[labels].mean().item() == pytest.approx(1.0)
    assert class_weights(None, labels, 3) is None
    with pytest.raises(DataError, match=r"class 3 has no training images"):
        class_weights("balanced", labels, 4)


@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
def test_class_weights_act_on_each_class_of_a_mixed_target(loss: str, model: nn.Module, images: torch.Tensor) -> None:
    weight = torch.linspace(0.2, 2.0, 10)
    criterion = build_criterion(Recipe(loss=loss), weight)  # type: ignore[arg-type]
    mix = Mixer(model, CutMix(prob=1.0), num_classes=10, seed=3)
    x, target = mix(images, torch.tensor([3, 1, 4, 9]))
    output = model(x)
    log_p = output.log_softmax(dim=1)
    expected = -(weight * target * log_p).sum(dim=1).mean()
    if loss == "bce":
        p = output.sigmoid()
        expected = -(weight * (target * p.log() + (1 - target) * (1 - p).log())).mean()
    assert mix.loss(output, target, criterion).item() == pytest.approx(expected.item(), rel=1e-4)


def test_class_weights_of_an_unaltered_batch_have_the_same_form(model: nn.Module, images: torch.Tensor) -> None:
    weight, labels = torch.linspace(0.2, 2.0, 10), torch.tensor([3, 1, 4, 9])
    mix = Mixer(model, CutMix(prob=0.0), num_classes=10)
    x, target = mix(images, labels)
    output = model(x)
    expected = -(weight[labels] * output.log_softmax(dim=1)[range(4), labels]).mean()
    assert mix.loss(output, target, build_criterion(Recipe(), weight)).item() == pytest.approx(
        expected.item(), rel=1e-5
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--class-weight", "1", "2"], "class_weight needs 10 values, one per class, got 2"),
        (["--class-weight", "skewed"], "class_weight must be"),
        (["--class-weight", "balanced", "--loss", "bce_softmax"], "class_weight needs the loss cross_entropy or bce"),
        (
            ["--select-split", "test", "--val-fraction", "0.1"],
            "select_split test chooses the best epoch: set val_fraction",
        ),
        (["--pretrained-path", "a.safetensors"], "pretrained_path has no effect without pretrained"),
    ],
)
def test_wrong_flags(flags: list[str], message: str) -> None:
    ended = train_here(*flags)
    assert ended.code == 2
    assert message in ended.err


def test_class_weights_given_and_balanced_train(tmp_path: Path) -> None:
    for name, flags in {"a": ["balanced"], "b": ["1.0"] * 10, "c": []}.items():
        given = ["--class-weight", *flags] if flags else []
        ended = train_here("--limit", 60, "--batch-size", 20, "--epochs", 1, "--threads", 1, "--output", tmp_path,
                           "--experiment", name, *given)  # fmt: skip
        assert ended.code == 0, ended.err
    rows = {name: (tmp_path / name / "summary.csv").read_text() for name in "abc"}
    recipe = yaml.safe_load((tmp_path / "a" / "recipe.yaml").read_text())
    assert recipe["class_weight"] == "balanced"
    assert rows["b"].split(",")[8][:6] == rows["c"].split(",")[8][:6], "equal weights change nothing but rounding"


def test_a_folder_with_other_classes_is_not_recorded_as_the_dataset_of_the_recipe(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "holiday-photos", {"train": 60, "test": 20}, classes=4)
    flags = ["--data-dir", folder, "--num-classes", 4, "--epochs", 1, "--batch-size", 20, "--threads", 1]
    ended = train_here("--recipe", "fashion_mini_none", *flags, "--output", tmp_path, "--experiment", "a")
    assert ended.code == 0, ended.err
    assert "recorded as holiday-photos" in ended.out
    assert yaml.safe_load((tmp_path / "a" / "recipe.yaml").read_text())["dataset"] == "holiday-photos"
    again = train_here("--recipe", "fashion_mini_none", *flags, "--output", tmp_path, "--experiment", "a", "--resume")
    assert again.code == 0, again.err
