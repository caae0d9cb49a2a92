"""Corrupted test images from files: a local folder, or a dataset of the Hub with the same files.

There are two layouts, as in the published sets: ``CORRUPTION/SEVERITY/CLASS/*`` (ImageNet-C, Tiny-ImageNet-C) and
``CORRUPTION.npy`` with ``labels.npy``, the five severities concatenated (CIFAR-C). Either may be one folder
deeper, as after unpacking each of ImageNet-C's archives into its own folder (``noise/gaussian_noise``).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from ...data.encoded import Source
from ...data.folders import FolderSource
from ...data.source import HUB_PREFIX
from ...data.splits import take_stratified
from ...errors import DataError, brief, one_line
from ...recipe.parts import ImageSpec
from ...system.network import explain_hub_error
from ..images import TestImages

SEVERITIES = (1, 2, 3, 4, 5)


class ArraySource(Source):
    """Images in a NumPy array, uint8 (N, H, W) or (N, H, W, C)."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self.labels = images, labels.astype(np.int64)
        self.class_names = None

    def image(self, index: int, mode: str | None = None) -> Image.Image:
        image = Image.fromarray(np.asarray(self._images[int(index)]))
        return image if mode is None else image.convert(mode)

    def describe(self, index: int) -> str:
        return f"{int(index)} of the array"


def require_corrupted(where: str, names: Sequence[str], *, like: TestImages) -> None:
    """Raise DataError if files are missing or do not fit, as far as that is known without listing all images."""
    for name in names:
        folder = _find_folder(where, name) / name
        missing = [severity for severity in SEVERITIES if not (folder / str(severity)).is_dir()]
        if folder.is_dir() and missing:
            raise DataError(f"corrupted images {where}: {name} has no folder for severity {missing[0]}")
        if not folder.is_dir() or name == names[0]:
            _open_matching(where, name, SEVERITIES[0], like)


def open_corrupted(where: str, name: str, severity: int, *, like: TestImages) -> TestImages:
    """Open one corruption at one severity, with the number of samples and the size of the clean test images.

    Raises:
        DataError: the files are missing or do not fit.
    """
    source = _open_matching(where, name, severity, like)
    rows = take_stratified(source.labels, len(like), seed=like.data.split_seed)
    return TestImages(source, rows, like.data, _without_crop(like.spec, source), batch_size=like.batch_size)


def _without_crop(images: ImageSpec, source: Source) -> ImageSpec:
    """Do not crop images that already have the model's size: ImageNet-C's are resized and cropped."""
    height, width = images.size
    return replace(images, crop_pct=1.0) if source.image(0).size == (width, height) else images


def _open_matching(where: str, name: str, severity: int, like: TestImages) -> Source:
    """Open the images, and check that classes and sizes match the clean images."""
    source = _open_source(where, name, severity)
    classes = like.data.num_classes
    known = len(source.class_names) if source.class_names else int(source.labels.max()) + 1
    if known > classes or (source.class_names and known != classes):
        raise DataError(f"corrupted images {where}: {name} has {known} classes, but the test data has {classes}")
    own, other = like.class_names or (), source.class_names or ()
    if set(own) & set(other):  # both use the same names, so match classes by name and not by position
        unknown = sorted(set(other) - set(own))
        if unknown:
            raise DataError(f"corrupted images {where}: class {brief(unknown[0])} of {name} is not in the test data")
        source.labels = np.asarray([list(own).index(class_name) for class_name in other])[source.labels]
    size, (height, width) = source.image(0).size, like.spec.size
    # Images that are not cropped all have the same size; corrupted ones may already have the model's.
    if not like.spec.is_cropped and size not in (like.stored_size, (width, height)):
        clean_width, clean_height = like.stored_size
        raise DataError(
            f"corrupted images {where}: images of {name} have {size[1]} x {size[0]} pixels, "
            f"but the test images {clean_height} x {clean_width}"
        )
    return source


def _open_source(where: str, name: str, severity: int) -> Source:
    base = _find_folder(where, name)
    if (base / name).is_dir():
        return FolderSource(base / name / str(severity))
    label_files = [
        folder / "labels.npy" for folder in (base, _local_folder(where)) if (folder / "labels.npy").is_file()
    ]
    if not label_files:
        raise DataError(f"corrupted images {where}: there is no labels.npy in the folder of {name}.npy")
    stored, targets = _array(where, base / f"{name}.npy"), _array(where, label_files[0])
    count = len(stored) // 5
    if count == 0 or len(stored) != 5 * count or len(targets) not in (count, 5 * count):
        raise DataError(
            f"corrupted images {where}: expected five severities in {name}.npy, "
            f"got {len(stored)} images for {len(targets)} labels"
        )
    if stored.dtype != np.uint8 or not (stored.ndim == 3 or (stored.ndim == 4 and stored.shape[-1] == 3)):
        raise DataError(
            f"corrupted images {where}: {name}.npy must be uint8 (N, H, W, 3), got {stored.dtype} {stored.shape}"
        )
    if targets.ndim != 1 or targets.dtype.kind not in "iu" or int(targets.min()) < 0:
        raise DataError(
            f"corrupted images {where}: labels.npy must be class numbers (N,) from 0, "
            f"got {targets.dtype} {targets.shape}"
        )
    span = slice((severity - 1) * count, severity * count)
    return ArraySource(stored[span], targets[:count] if len(targets) == count else targets[span])


def _array(where: str, path: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"corrupted images {where}: {path.name} cannot be read: {one_line(error, 200)}") from error
    if array.ndim == 0:
        raise DataError(f"corrupted images {where}: {path.name} has a single value and not one per sample")
    return array


def _find_folder(where: str, name: str) -> Path:
    """Return the folder that contains a corruption: the given one, or the only one of its subfolders that does."""
    folder = _local_folder(where)
    places = [folder, *sorted(child for child in folder.iterdir() if child.is_dir())]
    found = [place for place in places if (place / name).is_dir() or (place / f"{name}.npy").is_file()]
    if found[:1] == [folder] or len(found) == 1:
        return found[0]
    if found:
        several = " and in ".join(place.name for place in found[:2])
        raise DataError(f"corrupted images {where}: {name} is in {several}, choose one of them")
    raise DataError(f"corrupted images {where}: contains neither {name}/SEVERITY/CLASS/ nor {name}.npy with labels.npy")


def require_folder(where: str) -> None:
    """Raise DataError unless files are in a folder or on the Hub."""
    if not where.startswith(HUB_PREFIX) and not Path(where).is_dir():
        kind = "an archive: unpack it first" if Path(where).is_file() else "not a folder"
        raise DataError(f"corrupted images {where} is {kind}; a dataset of the Hub is {HUB_PREFIX}OWNER/NAME")


@lru_cache(maxsize=4)
def _local_folder(where: str) -> Path:
    require_folder(where)
    if not where.startswith(HUB_PREFIX):
        return Path(where)
    from huggingface_hub import snapshot_download

    repo = where.removeprefix(HUB_PREFIX)
    try:
        return Path(snapshot_download(repo, repo_type="dataset"))
    except Exception as error:  # whatever the Hub's client and its transport raise
        problem = explain_hub_error(error, repo, doing="fetch")
        raise DataError(f"corrupted images: {problem}", retry=problem.retry) from error
