"""Splits: stratified, without overlap, with their own seed, and scarce if the recipe says so."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.datasets_on_disk import write_parquet
from timm_patchup.data.loader import load_data
from timm_patchup.data.splits import hold_out, hold_out_per_class, take_per_class, take_stratified

from .small_recipe import small


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.floats(0.0, 0.9), st.integers(0, 3))
def test_hold_out_is_stratified_and_whole(labels: list[int], fraction: float, seed: int) -> None:
    array = np.array(labels)
    rest, held = hold_out(array, fraction, seed=seed)
    assert sorted([*rest, *held]) == list(range(len(array)))
    wanted, sizes, taken = round(fraction * len(array)), np.bincount(array), np.bincount(array[held], minlength=6)
    taken, sizes = taken[: len(sizes)][sizes > 0], sizes[sizes > 0]
    assert np.abs(taken - sizes * wanted / len(array)).max() <= 1
    assert (taken < sizes).all(), "every class is trained on"
    at_most = np.minimum(sizes - 1, np.floor(sizes * (wanted / len(array))) + 1)
    assert len(held) == min(wanted, at_most.sum()), "as many as wanted, unless that takes the last of a class"


def test_hold_out_depends_on_the_seed() -> None:
    labels = np.arange(100) % 10
    first, second, other = (hold_out(labels, 0.1, seed=seed)[1].tolist() for seed in (0, 0, 1))
    assert first == second != other


def test_a_class_of_few_images_is_not_held_out_whole() -> None:
    """Its remainder is as large as any other, so that rounding could give all of it away."""
    labels = np.array([0] * 10 + list(range(1, 11)))
    rest, held = hold_out(labels, 0.2, seed=0)
    assert set(labels[rest]) == set(labels)
    assert (labels[held] == 0).sum() == len(held) == 3
    with pytest.raises(ValueError, match="5 images per class leave none to train on of class 0"):
        hold_out_per_class(np.array([0] * 5 + [1] * 9), 5, seed=0)


def test_take_per_class() -> None:
    labels = np.array([0] * 5 + [1] * 3 + [2] * 9)
    assert Counter(labels[take_per_class(labels, 3, seed=0)]) == {0: 3, 1: 3, 2: 3}
    with pytest.raises(ValueError, match="cannot take 4 images per class: class 1 has 3"):
        take_per_class(labels, 4, seed=0)
    assert len(take_stratified(labels, 100, seed=0)) == 17


def test_parts_do_not_overlap(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 200, "test": 40})
    data = load_data(small(), folder)
    seen = [{image.numpy().tobytes() for image in part.images} for part in (data.train, data.val, data.test)]
    assert [len(part) for part in seen] == [180, 20, 40]
    assert len(set.union(*seen)) == 240
    assert Counter(data.val.labels.tolist()) == dict.fromkeys(range(10), 2)


def test_scarce_training_data_does_not_change_validation(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 200, "test": 40})
    data = load_data(small(train_per_class=5), folder)
    assert Counter(data.train.labels.tolist()) == dict.fromkeys(range(10), 5)
    assert (len(data.val), len(data.test)) == (20, 40)
    limited = load_data(small(limit=20), folder)
    assert (len(limited.train), len(limited.val), len(limited.test)) == (20, 20, 20)


def test_without_held_out_data_val_is_test(tmp_path: Path) -> None:
    data = load_data(small(val_fraction=0.0), write_parquet(tmp_path / "d", {"train": 40, "test": 20}))
    assert data.val is data.test
    assert not data.held_out
    assert len(data.train) == 40


def test_fingerprint_tells_data_apart(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 200, "test": 40})
    assert load_data(small(), folder).fingerprint == load_data(small(seed=3), folder).fingerprint
    assert load_data(small(), folder).fingerprint != load_data(small(split_seed=1), folder).fingerprint


def test_two_million_labels_are_split_like_few() -> None:
    """One pass per class would take hours here; the draw per class is as before."""
    labels = np.random.default_rng(0).integers(0, 20_000, 2_000_000)
    rest, held = hold_out(labels, 0.1, seed=3)
    assert len(held) == 200_000
    assert len(np.intersect1d(rest, held)) == 0
    sizes, taken = np.bincount(labels), np.bincount(labels[held])
    assert np.abs(taken - sizes * 0.1).max() < 1
