"""A complete run through the command: its files, and that they are correct."""

import json
import os
import re
from pathlib import Path

import pytest
import timm
import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support.datasets_on_disk import write_image_folder, write_parquet
from tests.support.training import Train, digests, rows
from timm_patchup.data.loader import load_data
from timm_patchup.recipe import load_recipe
from timm_patchup.report.confusion import plot_confusion
from timm_patchup.report.curves import plot_curves
from timm_patchup.report.figures import as_png
from timm_patchup.runs.folder import COLUMNS
from timm_patchup.runs.metrics import evaluate


def test_files_of_a_run(train: Train, tmp_path: Path) -> None:
    ended = train("--experiment", "a", "--val-fraction", 0.1, "--val-interval", 1)
    assert ended.code == 0, ended.err
    folder = tmp_path / "a"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "confusion.png",
        "curves.png",
        "model.safetensors",
        "recipe.yaml",
        "results.json",
        "summary.csv",
    ]
    assert "batch 20 = 1 process x 20 images, 5 updates per epoch" in ended.out
    assert "| a " in ended.out
    assert len(re.findall(r"^epoch \d/2  loss .*  data wait \d+%  ETA \d+m\d\ds$", ended.out, re.MULTILINE)) == 2
    assert [row["epoch"] for row in rows(folder)] == ["1", "2"]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((folder / "results.json").read_text())
    assert results["test"]["count"] == 100
    assert results["test"]["error"] == pytest.approx(100 - results["test"]["top1"])
    best = max(rows(folder), key=lambda row: (float(row["val_top1"]), int(row["epoch"])))
    assert str(results["best_epoch"]) == best["epoch"], "the latest of the best epochs on validation"


@pytest.mark.parametrize("name", ["a$^$", "\\frac{"])
def test_a_name_is_no_formula_in_the_pictures(name: str) -> None:
    """Matplotlib's error about one would end a run after its last epoch."""
    row = dict.fromkeys(COLUMNS, 1.0)
    assert as_png(plot_curves, [row], title=name, best_epoch=1, val_name="test").startswith(b"\x89PNG")
    assert as_png(plot_confusion, [[1, 0], [0, 1]], [name, "b"], title=name).startswith(b"\x89PNG")


def test_the_kept_weights_are_the_tested_ones(train: Train, tmp_path: Path) -> None:
    """Load them with plain timm, evaluate by hand, and compare with the results of the run."""
    assert train("--experiment", "a").code == 0
    recipe = load_recipe(tmp_path / "a" / "recipe.yaml")
    model = timm.create_model(recipe.model, num_classes=10, **recipe.model_kwargs)
    model.load_state_dict(load_file(tmp_path / "a" / "model.safetensors"))
    data = load_data(recipe)
    images = data.test.images.float() / 255
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (recipe.mean, recipe.std))
    with torch.inference_mode():
        output = model.eval()((images - mean) / std).double()
    labels = data.test.labels
    right = (output.argmax(dim=1) == labels).double().mean().item()
    loss = -output.log_softmax(dim=1)[torch.arange(len(labels)), labels].mean().item()
    test = json.loads((tmp_path / "a" / "results.json").read_text())["test"]
    assert test["top1"] == pytest.approx(100 * right)
    assert test["loss"] == pytest.approx(loss, rel=1e-5)


def test_the_recipe_of_a_run_repeats_it(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a", "--seed", 3, "--mix-gamma", 0.4).code == 0
    from_file = ["--recipe", tmp_path / "a" / "recipe.yaml", "--experiment", "b"]
    assert train(*from_file).code == 0
    first, second = digests(tmp_path / "a"), digests(tmp_path / "b")
    assert first.pop("recipe.yaml") != second.pop("recipe.yaml"), "its first line has the name of the run"
    assert first == second
    assert train("--experiment", "c", "--seed", 4, "--mix-gamma", 0.4).code == 0
    assert digests(tmp_path / "c")["model.safetensors"] != first["model.safetensors"]


def test_the_precision_of_the_launch_is_part_of_the_recipe(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as launched:  # what accelerate launch --mixed_precision bf16 does
        launched.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        same = ["--recipe", "fashion_mini_hard_patchup", "--experiment", "a", "--resume"]
        assert train(*same).code == 0
        assert "is already finished" in train(*same).out
        (tmp_path / "a" / "results.json").unlink()
        assert "resumed from" in train(*same).out, "the command that started the run resumes it"
    assert train("--experiment", "b", "--amp").code == 0
    recipe = load_recipe(tmp_path / "a" / "recipe.yaml")
    assert (recipe.amp, recipe.amp_dtype) == (True, "bfloat16")
    assert digests(tmp_path / "a")["model.safetensors"] == digests(tmp_path / "b")["model.safetensors"]
    assert train("--experiment", "c").code == 0
    (tmp_path / "c" / "results.json").unlink()
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    other = train("--experiment", "c", "--resume")
    assert other.code == 2
    assert "was started in float32, this launch asks for bfloat16" in other.err


def test_accumulation_in_the_environment_is_ignored(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("--experiment", "a").code == 0
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    assert train("--experiment", "b").code == 0
    assert digests(tmp_path / "a")["model.safetensors"] == digests(tmp_path / "b")["model.safetensors"]


def test_no_file_contains_private_words(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_parquet(tmp_path / "telling-name", {"train": 100, "test": 40})
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    assert train("--experiment", "a", "--data-dir", folder).code == 0
    secrets = [str(tmp_path), "telling-name", "hf_secret", str(Path.home()), os.uname().nodename]
    files = [path for path in (tmp_path / "a").rglob("*") if path.is_file() and path.name != "local.json"]
    assert len(files) >= 9
    for path in files:
        content = path.read_bytes()
        for secret in secrets:
            if len(secret) > 5:
                assert secret.encode() not in content, (path.name, secret)


def test_weights_hold_no_metadata_of_the_machine(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a").code == 0
    with safe_open(tmp_path / "a" / "model.safetensors", "pt") as file:
        assert set(file.metadata() or {}) <= {"format"}


def test_the_last_epoch_is_kept_if_nothing_is_held_out(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a", "--val-fraction", 0, "--epochs", 3).code == 0
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert (results["best_epoch"], results["chosen_on"]) == (3, "nothing: the last epoch")
    newest = sorted((tmp_path / "a" / "checkpoints").glob("step-*"))[-1]
    kept, last = load_file(tmp_path / "a" / "model.safetensors"), load_file(newest / "model.safetensors")
    assert all(torch.equal(kept[key], last[key]) for key in kept)


def test_image_folders_train(train: Train, tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "images", {"train": 60, "val": 9})
    flags = ["--data-dir", folder, "--num-classes", 3, "--crop-padding", "none", "--val-split", "validation"]
    ended = train("--experiment", "a", *flags, "--val-fraction", 0.1, "--lighting", 0.1, "--color-jitter", 0.4)
    assert ended.code == 0, ended.err
    assert "54 train, 6 val (chooses the epoch), 9 test" in ended.out


def test_metrics_count_every_sample_once() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    images, labels = torch.randn(11, 1, 2, 2), torch.randint(3, (11,))
    metrics = evaluate(model, [(images[:7], labels[:7]), (images[7:], labels[7:])], Accelerator(cpu=True))
    output = model(images).double()
    assert metrics.count == 11
    assert metrics.top1 == pytest.approx(100 * (output.argmax(1) == labels).double().mean().item())
    assert metrics.top5 == 100.0, "among three classes"
    assert metrics.loss == pytest.approx(torch.nn.functional.cross_entropy(output, labels).item(), rel=1e-6)
    assert model.training


def test_trackers_get_every_epoch(train: Train, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train("--experiment", "a", "--track", "tensorboard").code == 0
    logs = next((tmp_path / "a" / "logs").rglob("events.out.tfevents.*")).parent
    events = EventAccumulator(str(logs))
    events.Reload()
    written = [float(row["train_loss"]) for row in rows(tmp_path / "a")]
    assert [event.value for event in events.Scalars("train_loss")] == pytest.approx(written)
    assert len(events.Scalars("test_error")) == 1
