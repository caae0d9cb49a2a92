"""Corrupted images from files: the layouts of the published sets, and one error line per mismatch."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from PIL import Image

from tests.evaluation.evaluating import make_context, trained, with_options
from timm_patchup.errors import DataError
from timm_patchup.evaluation.images import TestImages
from timm_patchup.evaluation.suites import corruptions
from timm_patchup.evaluation.suites.corrupted_files import ArraySource, open_corrupted, require_corrupted
from timm_patchup.evaluation.suites.corruptions import CORRUPTIONS
from timm_patchup.recipe.data_names import load_data_spec
from timm_patchup.recipe.parts import ImageSpec

GROUPS = {"noise": CORRUPTIONS[:3], "blur": CORRUPTIONS[3:7], "weather": CORRUPTIONS[7:11], "digital": CORRUPTIONS[11:]}
COUNT = 20


class Named(ArraySource):
    """Images in memory with class names."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, class_names: Sequence[str] | None = None) -> None:
        super().__init__(images, labels)
        self.class_names = class_names  # type: ignore[assignment]


def clean(*, class_names: Sequence[str] | None = None, size: int = 32, **changes: object) -> TestImages:
    """Return the clean images that the corrupted ones belong to: two of each of ten classes."""
    spec = ImageSpec(input_size=(3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3, crop_padding=2)
    images = np.zeros((COUNT, size, size, 3), dtype=np.uint8)
    source = Named(images, np.arange(COUNT) % 10, class_names)
    return TestImages(source, np.arange(COUNT), load_data_spec("fashion_mini"), replace(spec, **changes))  # type: ignore[arg-type]


def write_arrays(folder: Path, *, size: int = 32, labels: np.ndarray | None = None) -> Path:
    """Write files in the layout of CIFAR-10-C; all pixels of severity s are s."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "labels.npy", np.tile(np.arange(COUNT) % 10, 5) if labels is None else labels)
    bytes_ = np.repeat(np.arange(1, 6, dtype=np.uint8), COUNT)
    for name in CORRUPTIONS:
        np.save(folder / f"{name}.npy", np.broadcast_to(bytes_[:, None, None, None], (5 * COUNT, size, size, 3)))
    return folder


def write_folders(folder: Path, names: Sequence[str], *, classes: Sequence[str], size: int = 32) -> Path:
    """Write files in the layout of ImageNet-C; pixels state the severity and the class number."""
    for name in names:
        for severity in range(1, 6):
            for number, class_name in enumerate(classes):
                path = folder / name / str(severity) / class_name / "ILSVRC2012_val_00000001.png"
                path.parent.mkdir(parents=True)
                Image.new("RGB", (size, size), (severity, number, 0)).save(path)
    return folder


def pixels_of(images: TestImages) -> torch.Tensor:
    return (images.spread(len(images))[0] * 255).round().int()


def test_arrays_concatenate_the_severities(tmp_path: Path) -> None:
    for folder, labels in (("long", None), ("short", np.arange(COUNT) % 10)):
        write_arrays(tmp_path / folder, labels=labels)
        require_corrupted(str(tmp_path / folder), CORRUPTIONS, like=clean())
        for severity in range(1, 6):
            opened = open_corrupted(str(tmp_path / folder), "fog", severity, like=clean())
            assert (pixels_of(opened) == severity).all()
            assert opened.labels.tolist() == [label % 10 for label in range(COUNT)]


def test_archives_unpacked_into_separate_folders(tmp_path: Path) -> None:
    classes = [f"n{number}" for number in range(10)]
    for group, names in GROUPS.items():
        write_folders(tmp_path / "ImageNet-C" / group, names, classes=classes)
    where = str(tmp_path / "ImageNet-C")
    require_corrupted(where, CORRUPTIONS, like=clean())
    opened = open_corrupted(where, "frost", 4, like=clean())
    assert (pixels_of(opened)[:, 0] == 4).all()
    assert opened.labels.tolist() == list(range(10))
    write_arrays(tmp_path / "above" / "CIFAR-10-C")
    assert len(open_corrupted(str(tmp_path / "above"), "snow", 1, like=clean())) == COUNT


def test_classes_are_matched_by_name_if_both_have_names(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(10)]
    where = str(write_folders(tmp_path, CORRUPTIONS[:1], classes=names))
    like = clean(class_names=names[::-1])
    opened = open_corrupted(where, CORRUPTIONS[0], 1, like=like)
    written_as = pixels_of(opened)[:, 1, 0, 0]
    assert opened.labels.tolist() == [9 - int(number) for number in written_as]
    with pytest.raises(DataError, match="class 'n9' of gaussian_noise is not in the test data"):
        open_corrupted(where, CORRUPTIONS[0], 1, like=clean(class_names=[*names[:9], "other"]))
    others = [f"class {number}" for number in range(10)]
    opened = open_corrupted(where, CORRUPTIONS[0], 1, like=clean(class_names=others))
    assert opened.labels.tolist() == list(range(10)), "unrelated names are ignored"


def test_cropped_images_are_not_cropped_again(tmp_path: Path) -> None:
    """ImageNet-C's images are center crops of 224 x 224; larger ones are resized and cropped as usual."""
    path = tmp_path / "fog" / "1"
    for size in (32, 40):
        frame = np.zeros((size, size, 3), dtype=np.uint8)
        frame[0], frame[-1], frame[:, 0], frame[:, -1] = 255, 255, 255, 255
        for number in range(10):
            (path / f"n{number}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(frame).save(path / f"n{number}" / "a.png")
        opened = open_corrupted(str(tmp_path), "fog", 1, like=clean(crop_padding=None, crop_pct=0.8))
        edge = pixels_of(opened)[:, :, 0]
        assert (edge == 255).all() if size == 32 else (edge == 0).all()


def test_mismatches_are_one_line_each(tmp_path: Path) -> None:
    def error_line(folder: Path, **keys: object) -> str:
        with pytest.raises(DataError) as caught:
            require_corrupted(str(folder), CORRUPTIONS, like=clean(**keys))  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
        return str(caught.value)

    arrays = write_arrays(tmp_path / "arrays")
    require_corrupted(str(arrays), CORRUPTIONS, like=clean(size=28))  # the model takes 32
    larger = write_arrays(tmp_path / "larger", size=64)
    assert "images of gaussian_noise have 64 x 64 pixels, but the test images 28 x 28" in error_line(larger, size=28)
    np.save(arrays / "labels.npy", np.arange(5 * COUNT))
    assert "gaussian_noise has 20 classes, but the test data has 10" in error_line(arrays)
    np.save(arrays / "labels.npy", np.zeros(7, dtype=int))
    assert "expected five severities in gaussian_noise.npy, got 100 images for 7 labels" in error_line(arrays)
    np.save(arrays / "labels.npy", np.full(COUNT, -1))
    assert "labels.npy must be class numbers (N,) from 0, got int64 (20,)" in error_line(arrays)
    np.save(arrays / "labels.npy", np.asarray([{}] * COUNT), allow_pickle=True)
    assert "labels.npy cannot be read" in error_line(arrays)
    (arrays / "labels.npy").unlink()
    assert "there is no labels.npy in the folder of gaussian_noise.npy" in error_line(arrays)
    write_arrays(arrays)
    np.save(arrays / "snow.npy", np.zeros((5 * COUNT, 3, 32, 32), dtype=np.uint8))
    assert "snow.npy must be uint8 (N, H, W, 3), got uint8 (100, 3, 32, 32)" in error_line(arrays)
    (arrays / "snow.npy").write_bytes((arrays / "fog.npy").read_bytes()[:5000])
    assert "snow.npy cannot be read" in error_line(arrays)
    (arrays / "snow.npy").unlink()
    assert "contains neither snow/SEVERITY/CLASS/ nor snow.npy with labels.npy" in error_line(arrays)

    (tmp_path / "CIFAR-10-C.tar").write_bytes(b"")
    assert "CIFAR-10-C.tar is an archive: unpack it first" in error_line(tmp_path / "CIFAR-10-C.tar")
    folders = write_folders(tmp_path / "folders", CORRUPTIONS, classes=[f"n{number}" for number in range(10)])
    (folders / "pixelate" / "5").rename(folders / "pixelate" / "6")
    assert "pixelate has no folder for severity 5" in error_line(folders)
    write_arrays(tmp_path / "twice" / "a")
    write_arrays(tmp_path / "twice" / "b")
    assert "gaussian_noise is in a and in b, choose one of them" in error_line(tmp_path / "twice")


def test_files_are_part_of_the_settings_without_their_path(tmp_path: Path) -> None:
    context = make_context(trained(), limit=20)
    where = ["a", "b", "a/b", "hfds/OWNER/NAME", "hfds/OTHER/NAME", str(tmp_path / "NAME")]
    images = [corruptions.settings(with_options(context, corrupted=name))["images"] for name in where]
    assert len(set(images)) == len(where)
    assert images[3] == "ready files of hfds/OWNER/NAME"
    assert re.fullmatch(r"ready files of NAME-[0-9a-f]{8}", images[5])


def test_a_dataset_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from the client's cache, where downloads are stored."""
    commit = "0" * 40
    repository = tmp_path / "datasets--OWNER--CIFAR-10-C"
    write_arrays(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    opened = open_corrupted("hfds/OWNER/CIFAR-10-C", "fog", 3, like=clean())
    assert (pixels_of(opened) == 3).all()
    with pytest.raises(DataError, match=r"^corrupted images: dataset OWNER/nothing is not cached and the Hub "):
        open_corrupted("hfds/OWNER/nothing", "fog", 3, like=clean())


def test_files_with_different_numbers_of_samples_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([20] * 7 + [19])
    monkeypatch.setattr(corruptions, "_error", lambda *_: (50.0, next(counts)))
    with pytest.raises(corruptions.UserError, match="shot_noise at severity 3 has 19 samples, the others 20"):
        corruptions.measure(SimpleNamespace())  # type: ignore[arg-type]
