"""Batches: the same for any number of processes, and a sample does not depend on the process that loads it."""

import socket
import time
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.datasets_on_disk import numbered_image, write_parquet
from timm_patchup.data.batches import EvaluationBatches, TrainingBatches
from timm_patchup.data.loader import evaluation_loader, load_data, training_loader
from timm_patchup.data.workers import SharedBuffers
from timm_patchup.errors import UserError
from timm_patchup.recipe import Recipe

from .small_recipe import small


@pytest.mark.parametrize(("world_size", "pieces"), [(1, 1), (2, 1), (1, 4), (2, 2), (4, 1)])
def test_a_batch_is_the_same_set_for_any_number_of_processes(world_size: int, pieces: int) -> None:
    def sampler(rank: int, world: int, parts: int) -> TrainingBatches:
        made = TrainingBatches(50, batch_size=8, micro_batches=parts, rank=rank, world_size=world, seed=3)
        made.begin(epoch=2)
        return made

    whole = list(sampler(0, 1, 1))
    assert len(whole) == 6
    shares = [list(sampler(rank, world_size, pieces)) for rank in range(world_size)]
    for update, batch in enumerate(whole):
        mine = [key for share in shares for piece in share[update * pieces : (update + 1) * pieces] for key in piece]
        assert sorted(mine) == sorted(batch)
        assert all(len(piece) == 8 // (world_size * pieces) for share in shares for piece in share)
    assert len({sample for batch in whole for _, sample in batch}) == 48


@given(
    st.integers(1, 60), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 2, 3]), st.integers(0, 3), st.data()
)
def test_the_last_batch_of_an_epoch(
    batches: int, world_size: int, pieces: int, each: int, epoch: int, data: st.DataObject
) -> None:
    """Every sample once, shares that differ by one at most, and weights of the shares that add up to one."""
    parts = world_size * pieces
    batch_size = parts * each
    left = data.draw(st.integers(parts, batch_size))
    count = (batches - 1) * batch_size + left
    keys = {"batch_size": batch_size, "micro_batches": pieces, "world_size": world_size, "seed": 3}
    seen, weight = [], 0.0
    for rank in range(world_size):
        own = TrainingBatches(count, rank=rank, drop_last=False, **keys)
        dropping = TrainingBatches(count, rank=rank, **keys)
        own.begin(epoch)
        dropping.begin(epoch)
        listed = list(own)
        assert own.updates == batches
        assert len(own) == len(listed) == batches * pieces
        assert listed[: len(dropping)] == list(dropping), "whole batches are the same"
        for update in range(batches):
            mine = listed[update * pieces : (update + 1) * pieces]
            size = batch_size if update < batches - 1 else left
            assert all(size // parts <= len(piece) <= -(-size // parts) for piece in mine)
            assert own.divisors(update) == [size / (world_size * len(piece)) for piece in mine]
        if left == batch_size:
            assert own.divisors(batches - 1) == [pieces] * pieces
        weight += sum(1 / (world_size * divisor) for divisor in own.divisors(batches - 1))
        seen += [sample for piece in listed for _, sample in piece]
    assert sorted(seen) == list(range(count))
    assert weight == pytest.approx(1.0)


def test_a_last_batch_with_fewer_images_than_processes_is_refused() -> None:
    keys = {"batch_size": 8, "rank": 0, "seed": 3, "drop_last": False}
    assert TrainingBatches(50, micro_batches=2, world_size=1, **keys).updates == 7  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^drop_last false: 2 of 50 images .* 2 processes x 2 accumulation steps"):
        TrainingBatches(50, micro_batches=2, world_size=2, **keys)  # type: ignore[arg-type]


def test_an_epoch_can_be_resumed() -> None:
    batches = TrainingBatches(50, batch_size=8, micro_batches=1, rank=0, world_size=1, seed=0)
    batches.begin(epoch=1)
    whole = list(batches)
    batches.begin(epoch=1, update=4)
    assert len(batches) == 2
    assert list(batches) == whole[4:]
    batches.begin(epoch=2)
    assert list(batches) != whole


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 9), st.booleans())
def test_evaluation_gives_every_sample_once(count: int, world_size: int, batch_size: int, whole: bool) -> None:
    seen: list[int] = []
    for rank in range(world_size):
        batches = EvaluationBatches(count, batch_size=batch_size, rank=rank, world_size=world_size, whole=whole)
        listed = list(batches)
        assert len(listed) == len(batches)
        seen += [sample for batch in listed for _, sample in batch]
    assert sorted(seen) == list(range(count))


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 9))
def test_whole_batches_do_not_depend_on_the_processes(count: int, world_size: int, batch_size: int) -> None:
    def shares(processes: int) -> list[list[list[tuple[int, int]]]]:
        how = {"batch_size": batch_size, "world_size": processes, "whole": True}
        return [list(EvaluationBatches(count, rank=rank, **how)) for rank in range(processes)]  # type: ignore[arg-type]

    (alone,), several = shares(1), shares(world_size)
    assert sorted(batch for share in several for batch in share) == sorted(alone)
    assert max(map(len, several)) - min(map(len, several)) <= 1


HEAVY = {"aa": "rand-m9-mstd0.5", "reprob": 0.5, "vflip": 0.5, "lighting": 0.1}


COLOURS = {"color_jitter": 0.4, "lighting": 0.1, "reprob": 0.5}


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        HEAVY,
        {"crop_padding": None, **HEAVY},
        {"aa": "augmix-m3-w3"},
        {"aa": "augmix-m3-w3", "aug_splits": 2},
        {"aug_splits": 3, **COLOURS},
        COLOURS,
        {"crop_padding": None, "train_interpolation": "random", **COLOURS},
    ],
)
def test_a_sample_does_not_depend_on_process_or_worker(tmp_path: Path, overrides: dict[str, object]) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 40, "test": 10})

    def epoch(world_size: int, pieces: int, workers: int, number: int) -> dict[bytes, int]:
        recipe = small(grad_accum_steps=pieces, workers=workers, val_fraction=0.0, **overrides)
        data = load_data(recipe, folder)
        seen = {}
        for rank in range(world_size):
            loader, batches = training_loader(data.train, recipe, rank=rank, world_size=world_size)
            batches.begin(number)
            for images, labels in loader:
                assert images.dtype == torch.float32
                assert images.shape[1:] == (3, 32, 32)
                seen |= {image.numpy().tobytes(): int(label) for image, label in zip(images, labels)}
        return seen

    alone = epoch(1, 1, 0, number=1)
    assert len(alone) == 40 * overrides.get("aug_splits", 1)
    assert epoch(2, 2, 2, number=1) == alone
    assert epoch(1, 1, 0, number=2).keys() != alone.keys()


def test_memory_of_a_batch_is_not_written_before_it_was_read(tmp_path: Path) -> None:
    """Loader processes use their memory again and again, also while the reader is slow and batches differ in size."""
    recipe = small(crop_padding=None, workers=0, val_fraction=0.0, batch_size=2, validation_batch_size=3)
    data = load_data(recipe, write_parquet(tmp_path / "d", {"train": 80, "test": 70}))

    def read(workers: int, *, pause: float) -> list[torch.Tensor]:
        own = Recipe.from_dict(recipe.to_dict() | {"workers": workers})
        train, batches = training_loader(data.train, own, rank=0, world_size=1)
        test = evaluation_loader(data.test, own, rank=0, world_size=1)
        seen = []
        for epoch in range(2):
            batches.begin(epoch)
            for number, (images, _) in enumerate(train):
                time.sleep(pause if number % 7 == 0 else 0.0)  # the processes are ahead as far as they may
                seen.append(images.clone())
        return [*seen, *(images for images, _ in test)]

    alone, shared = read(0, pause=0.0), read(2, pause=0.02)
    assert len(alone) == len(shared) == 2 * 40 + 24
    assert all(torch.equal(first, second) for first, second in zip(alone, shared))


def test_a_broken_connection_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A parent that is interrupted while it fetches a batch, because another process died, closes its connection."""
    broken: list[str] = []
    connect = resource_sharer._resource_sharer.get_connection

    def break_one_then_connect(ident: tuple[str, int]) -> Any:
        if not broken:
            broken.append(ident[0])
            with socket.socket(socket.AF_UNIX) as interrupted:
                interrupted.connect(ident[0])
        return connect(ident)

    monkeypatch.setattr(resource_sharer._resource_sharer, "get_connection", break_one_then_connect)
    recipe = small(val_fraction=0.0, batch_size=4, workers=1)
    data = load_data(recipe, write_parquet(tmp_path / "d", {"train": 40, "test": 10}))
    loader, batches = training_loader(data.train, recipe, rank=0, world_size=1)
    batches.begin(epoch=0)
    capfd.readouterr()
    assert len(list(loader)) == 10
    assert len(broken) == 1
    del loader
    assert capfd.readouterr().err == ""


def test_buffers_are_used_in_turn_and_grow() -> None:
    buffers = SharedBuffers(3)
    images = [torch.full((3, 4, 4), value, dtype=torch.uint8) for value in range(7)]
    made = [buffers.stack(images[first : first + 2]) for first in range(4)]
    assert all(batch.is_shared() for batch in made)
    assert len({batch.data_ptr() for batch in made[:3]}) == 3
    assert made[3].data_ptr() == made[0].data_ptr()
    assert torch.equal(made[3], torch.stack(images[3:5]))
    larger, smaller = buffers.stack(images), buffers.stack(images[:1])
    assert torch.equal(larger, torch.stack(images))
    assert smaller.data_ptr() == made[2].data_ptr()
    assert smaller.shape == (1, 3, 4, 4)


def test_loading_leaves_the_global_generator_alone(tmp_path: Path) -> None:
    recipe = small(val_fraction=0.0)
    data = load_data(recipe, write_parquet(tmp_path / "d", {"train": 40, "test": 10}))
    before = torch.get_rng_state()
    loader, _ = training_loader(data.train, recipe, rank=0, world_size=1)
    next(iter(loader))
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_images_are_normalized_pixels(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 40, "test": 10})
    recipe = small(mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7], validation_batch_size=4)
    expected = torch.from_numpy(np.stack([np.asarray(numbered_image(1000 + i)) for i in range(10)])).permute(0, 3, 1, 2)
    expected = (expected / 255 - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([0.5, 0.6, 0.7]).view(
        3, 1, 1
    )
    for overrides in ({}, {"crop_padding": None}):
        data = load_data(Recipe.from_dict(recipe.to_dict() | overrides), folder)
        loader = evaluation_loader(data.test, recipe, rank=0, world_size=1)
        images = torch.cat([images for images, _ in loader])
        torch.testing.assert_close(images, expected.float())


def test_repeated_images_are_augmented_differently_and_epochs_keep_their_length() -> None:
    def keys(epoch: int, **more: int) -> list[tuple[int, int]]:
        batches = TrainingBatches(100, batch_size=12, micro_batches=1, rank=0, world_size=1, seed=1, **more)
        batches.begin(epoch)
        return [key for batch in batches for key in batch]

    plain, repeated = keys(2), keys(2, repeats=3)
    assert len(plain) == len(repeated) == 96
    samples = [sample for _, sample in repeated]
    assert samples[::3] == samples[1::3] == samples[2::3] == [sample for _, sample in plain[:32]]
    assert len(set(repeated)) == 96, "no two repeats have the same augmentation"
    assert not set(repeated) & set(keys(3, repeats=3)), "nor do two epochs"


def test_processes_share_repeated_images() -> None:
    def one(rank: int, world_size: int) -> list[list[tuple[int, int]]]:
        return list(
            TrainingBatches(60, batch_size=12, micro_batches=1, rank=rank, world_size=world_size, seed=1, repeats=3)
        )

    whole = one(0, 1)
    assert [a + b for a, b in zip(one(0, 2), one(1, 2))] == whole
