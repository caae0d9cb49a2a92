"""Data of a run: where it comes from, how it is divided, and that a batch is the same whoever loads it."""

import os
import subprocess
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.datasets_on_disk import numbered_image, write_image_folder, write_parquet
from timm_patchup.data.loader import (
    EvaluationBatches,
    TrainingBatches,
    evaluation_loader,
    load_data,
    training_loader,
)
from timm_patchup.data.source import DataError, open_source
from timm_patchup.data.splits import hold_out, take_per_class, take_stratified
from timm_patchup.data.transforms import Augmentation, Lighting, PaddedCrops
from timm_patchup.recipe import Recipe, load_recipe


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))


def small(**overrides: object) -> Recipe:
    return load_recipe("fashion_mini_none", {"batch_size": 20, **overrides})


# Division


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.floats(0.0, 0.9), st.integers(0, 3))
def test_hold_out_is_stratified_and_whole(labels: list[int], fraction: float, seed: int) -> None:
    array = np.array(labels)
    rest, held = hold_out(array, fraction, seed=seed)
    assert sorted([*rest, *held]) == list(range(len(array)))
    assert len(held) == round(fraction * len(array))
    for label, size in Counter(labels).items():
        assert abs((array[held] == label).sum() - size * len(held) / len(array)) < 1


def test_hold_out_depends_on_the_seed_alone() -> None:
    labels = np.arange(100) % 10
    first, second, other = (hold_out(labels, 0.1, seed=seed)[1].tolist() for seed in (0, 0, 1))
    assert first == second != other


def test_take_per_class() -> None:
    labels = np.array([0] * 5 + [1] * 3 + [2] * 9)
    assert Counter(labels[take_per_class(labels, 3, seed=0)]) == {0: 3, 1: 3, 2: 3}
    with pytest.raises(ValueError, match="4 images of each class are wanted, class 1 has 3"):
        take_per_class(labels, 4, seed=0)
    assert len(take_stratified(labels, 100, seed=0)) == 17


def test_parts_do_not_overlap(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 200, "test": 40})
    data = load_data(small(), folder)
    seen = [{image.numpy().tobytes() for image in part.images} for part in (data.train, data.val, data.test)]
    assert [len(part) for part in seen] == [180, 20, 40]
    assert len(set.union(*seen)) == 240
    assert Counter(data.val.labels.tolist()) == dict.fromkeys(range(10), 2)


def test_scarce_subset_leaves_validation_as_it_is(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 200, "test": 40})
    data = load_data(small(train_per_class=5), folder)
    assert Counter(data.train.labels.tolist()) == dict.fromkeys(range(10), 5)
    assert (len(data.val), len(data.test)) == (20, 40)
    limited = load_data(small(limit=20), folder)
    assert (len(limited.train), len(limited.val), len(limited.test)) == (20, 20, 20)


def test_nothing_held_out_means_the_test_set_is_watched(tmp_path: Path) -> None:
    data = load_data(small(val_fraction=0.0), write_parquet(tmp_path / "d", {"train": 40, "test": 20}))
    assert data.val is data.test
    assert not data.held_out
    assert len(data.train) == 40


def test_fingerprint_tells_data_apart(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 200, "test": 40})
    assert load_data(small(), folder).fingerprint == load_data(small(seed=3), folder).fingerprint
    assert load_data(small(), folder).fingerprint != load_data(small(split_seed=1), folder).fingerprint


# Batches


@pytest.mark.parametrize(("world_size", "pieces"), [(1, 1), (2, 1), (1, 4), (2, 2), (4, 1)])
def test_a_batch_is_the_same_set_for_any_number_of_processes(world_size: int, pieces: int) -> None:
    def sampler(rank: int, world: int, parts: int) -> TrainingBatches:
        made = TrainingBatches(50, batch_size=8, pieces=parts, rank=rank, world_size=world, seed=3)
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


def test_an_epoch_goes_on_in_the_middle() -> None:
    batches = TrainingBatches(50, batch_size=8, pieces=1, rank=0, world_size=1, seed=0)
    batches.begin(epoch=1)
    whole = list(batches)
    batches.begin(epoch=1, update=4)
    assert len(batches) == 2
    assert list(batches) == whole[4:]
    batches.begin(epoch=2)
    assert list(batches) != whole


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 9))
def test_evaluation_gives_every_sample_once(count: int, world_size: int, batch_size: int) -> None:
    seen: list[int] = []
    for rank in range(world_size):
        batches = EvaluationBatches(count, batch_size=batch_size, rank=rank, world_size=world_size)
        listed = list(batches)
        assert len(listed) == len(batches)
        seen += [sample for batch in listed for _, sample in batch]
    assert sorted(seen) == list(range(count))


HEAVY = {"aa": "rand-m9-mstd0.5", "reprob": 0.5, "color_jitter": 0.4, "lighting": 0.1}


@pytest.mark.parametrize("overrides", [{}, HEAVY, {"crop_padding": None, **HEAVY}, {"aa": "augmix-m3-w3"}])
def test_a_sample_looks_the_same_whoever_loads_it(tmp_path: Path, overrides: dict[str, object]) -> None:
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
    assert len(alone) == 40
    assert epoch(2, 2, 2, number=1) == alone
    assert epoch(1, 1, 0, number=2).keys() != alone.keys()


def test_loading_moves_no_global_generator(tmp_path: Path) -> None:
    recipe = small(val_fraction=0.0)
    data = load_data(recipe, write_parquet(tmp_path / "d", {"train": 40, "test": 10}))
    before = torch.get_rng_state()
    loader, _ = training_loader(data.train, recipe, rank=0, world_size=1)
    next(iter(loader))
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_is_plain_pixels_normalised(tmp_path: Path) -> None:
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


# Transforms


def test_padded_crops_against_a_slow_loop() -> None:
    images = torch.randint(0, 256, (30, 3, 9, 7), dtype=torch.uint8)
    crops = PaddedCrops(30, padding=2, hflip=0.5, seed=4)
    index = torch.randperm(30)[:12]
    got = crops(images[index], index, epoch=3)
    top, left, flip = crops._draws(3)
    assert (int(top.min()), int(top.max()), int(left.max())) == (0, 4, 4)
    assert 0 < int(flip.sum()) < 30
    for position, sample in enumerate(index.tolist()):
        padded = np.pad(images[sample].numpy(), ((0, 0), (2, 2), (2, 2)))
        crop = padded[:, top[sample] : top[sample] + 9, left[sample] : left[sample] + 7]
        crop = crop[:, :, ::-1] if flip[sample] else crop
        assert np.array_equal(got[position].numpy(), crop)
    assert torch.equal(crops(images[index[:1]], index[:1], epoch=3), got[:1]), "alone as in a batch"


def test_lighting_adds_one_colour_along_the_principal_axes() -> None:
    image = torch.rand(3, 5, 4)
    torch.manual_seed(1)
    shifts = torch.stack([(Lighting(0.1)(image) - image)[:, 0, 0] for _ in range(4000)]).double()
    torch.manual_seed(1)
    change = Lighting(0.1)(image) - image
    torch.testing.assert_close(change, change[:, :1, :1].expand_as(change))
    values = torch.linalg.eigvalsh(shifts.T @ shifts / len(shifts)).sqrt().flip(0)
    torch.testing.assert_close(values, 0.1 * torch.tensor([0.2175, 0.0188, 0.0045]).double(), rtol=0.05, atol=1e-4)


def test_imagenet_transforms_have_jitter_and_lighting_in_their_place() -> None:
    kinds = [type(step).__name__ for step in Augmentation(load_recipe("imagenet_none"), crop=True).transform.transforms]
    assert kinds == [
        "RandomResizedCropAndInterpolation",
        "RandomHorizontalFlip",
        "ColorJitter",
        "MaybeToTensor",
        "Lighting",
        "Normalize",
    ]


# Sources


def test_image_folders_in_timms_order(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "d", {"train": 30, "val": 9})
    recipe = small(num_classes=3, val_split="validation", crop_padding=None)
    data = load_data(recipe, folder)
    assert data.class_names == ["n000", "n001", "n002"]
    assert (len(data.train), len(data.val), len(data.test)) == (27, 3, 9)
    images, labels = next(iter(evaluation_loader(data.test, recipe, rank=0, world_size=1)))
    assert images.shape == (9, 3, 32, 32)
    assert sorted(labels.tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_configuration_is_a_folder_or_in_the_readme(tmp_path: Path) -> None:
    recipe = small(dataset="hfds/ufldl-stanford/svhn", dataset_config="cropped_digits")
    inner = write_parquet(tmp_path / "a" / "cropped_digits", {"train": 20, "test": 20})
    assert len(open_source(recipe, "train", inner.parent).labels) == 20
    folder = write_parquet(tmp_path / "b", {"train": 30, "test": 20})
    (folder / "data").rename(folder / "cropped_digits")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: cropped_digits\n  data_files:\n"
        "  - split: train\n    path: cropped_digits/train-*\n"
        "  - split: test\n    path: cropped_digits/test-*\n- config_name: full_numbers\n  data_files: nothing-*\n---\n"
    )
    assert len(open_source(recipe, "train", folder).labels) == 30


def test_grey_images_become_colour_and_are_resized(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 40, "test": 10}, size=28, mode="L")
    data = load_data(small(), folder)
    expected = numbered_image(1000, size=28, mode="L").convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
    assert np.array_equal(data.test.images[0].permute(1, 2, 0).numpy(), np.asarray(expected))
    grey = load_data(small(input_size=[1, 28, 28], mean=[0.5], std=[0.5]), folder)
    assert grey.test.images.shape == (10, 1, 28, 28)


@pytest.mark.parametrize(
    ("written", "overrides", "message"),
    [
        ({}, {"num_classes": 5}, r"split 'train' holds the label 9, num_classes is 5"),
        ({}, {"num_classes": 20}, r"the data has 10 classes, num_classes is 20"),
        ({}, {"input_key": "img"}, r"input_key is 'img', the data set has the columns image, label"),
        ({}, {"target_key": "y"}, r"target_key is 'y', the data set has the columns image, label"),
        ({}, {"val_split": "dev"}, r"has no split 'dev'"),
        ({"unlabelled": True}, {}, r"split 'test' holds the label -1: it has no labels"),
        ({}, {"batch_size": 50}, r"batch_size 50 is more than the 36 samples to train on"),
        ({}, {"val_fraction": 0.001}, r"val_fraction 0.001 of 40 samples is none"),
        ({}, {"train_per_class": 9}, r"train_per_class: 9 images of each class are wanted"),
    ],
)
def test_data_that_does_not_fit(
    tmp_path: Path, written: dict[str, bool], overrides: dict[str, object], message: str
) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 40, "test": 20}, **written)
    with pytest.raises(DataError, match=message) as caught:
        load_data(small(**overrides), folder)
    assert "\n" not in str(caught.value)


def test_folders_that_hold_no_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        open_source(small(), "train", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no data set|cannot be read"):
        open_source(small(), "train", tmp_path)
    with pytest.raises(DataError, match="dataset must be fashion_mini or hfds/OWNER/NAME"):
        open_source(small(dataset="cifar10"), "train")


class _Hub(BaseHTTPRequestHandler):
    """A Hub that knows no data set but one, which is gated."""

    def do_GET(self) -> None:
        gated = "gated" in self.path
        self.send_response(403 if gated else 404)
        self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        self.send_header("X-Error-Message", "Access to this dataset is restricted" if gated else "Repository not found")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("dataset", "offline", "message"),
    [
        ("hfds/someone/gated", False, "is gated: accept its terms at"),
        ("hfds/someone/missing", False, "no data set someone/missing on the Hub"),
        ("hfds/someone/missing", True, "is not in the cache and the Hub cannot be reached"),
    ],
)
def test_data_sets_out_of_reach(tmp_path: Path, dataset: str, offline: bool, message: str) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        environment = os.environ | {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": str(int(offline)),
        }
        command = [
            sys.executable,
            "-m",
            "timm_patchup.training",
            "--dataset",
            dataset,
            "--output",
            str(tmp_path / "out"),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 2
    assert message in done.stderr
    assert "--data-dir" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
