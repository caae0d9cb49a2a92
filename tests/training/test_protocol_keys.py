"""What the keys of a protocol do in a run: which images are held out and how, and which epoch is tested."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.datasets_on_disk import write_parquet
from tests.support.training import Train, rows
from timm_patchup.data.batches import EvaluationBatches
from timm_patchup.data.loader import Data, load_data
from timm_patchup.data.splits import hold_out_per_class, take_at_most
from timm_patchup.errors import DataError
from timm_patchup.recipe import Recipe
from timm_patchup.runs.metrics import Metrics
from timm_patchup.training.loop import Position, Trainer

RECIPE = Recipe(batch_size=20, crop_padding=2)


def data_of(folder: Path, **keys: object) -> Data:
    return load_data(replace(RECIPE, **keys), folder)  # type: ignore[arg-type]


def test_svhns_numbers_per_class() -> None:
    """733 per class are held out, of the rest at most 7,325 per class are trained on; SVHN's own class sizes."""
    sizes = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), sizes))
    rest, held = hold_out_per_class(labels, 733, seed=0)
    assert Counter(labels[held].tolist()) == dict.fromkeys(range(10), 733)
    taken = rest[take_at_most(labels[rest], 7325, seed=0)]
    assert Counter(labels[taken].tolist()) == {label: min(size - 733, 7325) for label, size in enumerate(sizes)}
    assert len(np.union1d(held, taken)) == len(held) + len(taken)


def test_images_held_out_per_class(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 200, "test": 40})
    data = data_of(folder, val_per_class=3, train_at_most=5)
    assert Counter(data.val.labels.tolist()) == dict.fromkeys(range(10), 3)
    assert Counter(data.train.labels.tolist()) == dict.fromkeys(range(10), 5)
    assert data.held_out
    with pytest.raises(DataError, match=r"^val_per_class: cannot take 21 images per class: class \d has 20$"):
        data_of(folder, val_per_class=21)


def test_split_by_the_seed_of_the_run(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 200, "test": 40})
    fixed = {data_of(folder, seed=seed).fingerprint for seed in (0, 1, 2)}
    drawn = {data_of(folder, seed=seed, split_by_seed=True).fingerprint for seed in (0, 1, 2)}
    assert (len(fixed), len(drawn)) == (1, 3)
    tests = [data_of(folder, seed=seed, split_by_seed=True, limit=20).test.images for seed in (0, 1)]
    assert torch.equal(*tests), "the test images stay the same"


def test_held_out_images_are_augmented_again_in_every_epoch(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 200, "test": 40})
    plain, augmented = (data_of(folder, val_augment=given).val for given in (False, True))

    def seen(images: object, epoch: int | None) -> torch.Tensor:
        batches = EvaluationBatches(20, batch_size=20, rank=0, world_size=1)
        if epoch is not None:
            batches.begin(epoch)
        return images.__getitems__(next(iter(batches)))[0]  # type: ignore[attr-defined]

    assert torch.equal(seen(plain, None), seen(augmented, None))
    first, again, second = seen(augmented, 0), seen(augmented, 0), seen(augmented, 1)
    assert torch.equal(first, again), "so that a resumed run sees the same images"
    assert not torch.equal(first, second)
    assert not torch.equal(first, seen(plain, None))


def test_a_run_with_augmented_held_out_images_resumes_exactly(train: Train, tmp_path: Path) -> None:
    flags = ["--val-augment", "--split-by-seed", "--best-tie", "first"]
    held_out = ["--val-fraction", 0.1, "--val-interval", 1]
    assert train("--experiment", "plain", *held_out).code == 0
    assert train("--experiment", "augmented", *held_out, *flags[:1]).code == 0
    plain, augmented = (rows(tmp_path / name) for name in ("plain", "augmented"))
    assert [row["train_loss"] for row in plain] == [row["train_loss"] for row in augmented]
    assert [row["val_loss"] for row in plain] != [row["val_loss"] for row in augmented]


@pytest.mark.parametrize(
    ("tie", "held_out", "best_on_test", "kept"),
    [
        ("last", True, False, [1, 3, 4]),
        ("first", True, False, [1, 3]),
        ("first", False, True, [1, 3]),
        ("last", False, False, [1, 2, 3, 4, 5]),
    ],
)
def test_which_epoch_is_tested(tie: str, held_out: bool, best_on_test: bool, kept: list[int]) -> None:
    """Of accuracies 50, 40, 60, 60, 55."""
    trainer = Trainer.__new__(Trainer)
    trainer.recipe = SimpleNamespace(best_tie=tie, best_on_test=best_on_test, eval_metric="top1")  # type: ignore
    trainer.data, trainer.position = SimpleNamespace(held_out=held_out), Position()  # type: ignore[assignment]
    found = []
    for epoch, top1 in enumerate((50.0, 40.0, 60.0, 60.0, 55.0), start=1):
        metrics = Metrics(loss=1.0, top1=top1, top5=99.0, count=10)
        if trainer._is_best(metrics):
            trainer.position.best_value = trainer._value(metrics)
            found.append(epoch)
    assert found == kept


def test_the_epoch_that_is_best_on_the_test_set(train: Train, tmp_path: Path) -> None:
    flags = ["--val-fraction", 0, "--val-interval", 1, "--best-on-test", "--epochs", 3, "--lr", 2]
    assert train("--experiment", "a", *flags).code == 0
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    errors = [float(row["val_error"]) for row in rows(tmp_path / "a")]
    assert results["chosen_on"] == "the test set"
    assert results["test"]["error"] == pytest.approx(min(errors))
    assert errors[results["best_epoch"] - 1] == min(errors)
