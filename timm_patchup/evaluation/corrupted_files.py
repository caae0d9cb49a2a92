"""Corrupted test images that are ready: a folder, or a data set of the Hub that holds the same files.

Two layouts are known, those of the published sets: ``CORRUPTION/SEVERITY/CLASS/*`` (ImageNet-C, Tiny-ImageNet-C) and
``CORRUPTION.npy`` with ``labels.npy``, the five severities one after the other (CIFAR-C). Either may lie one folder
further down, as ImageNet-C's archives do when each is unpacked into a folder of its own (``noise/gaussian_noise``).
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from ..data.source import HUB_PREFIX, FolderSource, Source
from ..data.splits import take_stratified
from ..errors import DataError
from ..recipe import Recipe
from ..system.network import explain_hub_error as explain
from .images import TestImages

SEVERITIES = (1, 2, 3, 4, 5)


class ArraySource:
    """Images (N, H, W) or (N, H, W, C) of bytes, as NumPy stores them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self.labels = images, labels.astype(np.int64)
        self.class_names = None

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(np.asarray(self._images[int(index)]))


def check_corrupted(where: str, names: Sequence[str], *, like: TestImages) -> None:
    """Raise DataError where files are missing or do not fit, as far as can be told without listing all images."""
    for name in names:
        folder = _base(where, name) / name
        missing = [severity for severity in SEVERITIES if not (folder / str(severity)).is_dir()]
        if folder.is_dir() and missing:
            raise DataError(f"--corrupted {where}: {name} has no folder {missing[0]} for that severity")
        if not folder.is_dir() or name == names[0]:
            _fitting(where, name, SEVERITIES[0], like)


def open_corrupted(where: str, name: str, severity: int, *, like: TestImages) -> TestImages:
    """Open one corruption at one severity, with as many samples and in the size of the clean test images.

    Raises:
        DataError: it is missing or does not fit.
    """
    source = _fitting(where, name, severity, like)
    rows = take_stratified(source.labels, len(like), seed=like.recipe.split_seed)
    return TestImages(source, rows, _uncropped(like.recipe, source))


def _uncropped(recipe: Recipe, source: Source) -> Recipe:
    """Leave images alone that have the model's size: those of ImageNet-C were resized and cropped before."""
    _, height, width = recipe.input_size
    if source.image(0).size != (width, height):
        return recipe
    return Recipe.from_dict(recipe.to_dict() | {"crop_pct": 1.0})


def _fitting(where: str, name: str, severity: int, like: TestImages) -> Source:
    """Open the images and see that labels and sizes are those of the clean ones."""
    source = _source(where, name, severity)
    classes = like.recipe.num_classes
    known = len(source.class_names) if source.class_names else int(source.labels.max()) + 1
    if known > classes or (source.class_names and known != classes):
        raise DataError(f"--corrupted {where}: {name} has {known} classes, the test data {classes}")
    own, other = like.class_names or (), source.class_names or ()
    if set(own) & set(other):  # both name the classes in one way, so names and not places tell which is which
        strange = sorted(set(other) - set(own))
        if strange:
            raise DataError(f"--corrupted {where}: the test data has no class {strange[0]!r} as {name} has")
        source.labels = np.asarray([list(own).index(class_name) for class_name in other])[source.labels]
    size, (_, *input_size) = source.image(0).size, like.recipe.input_size
    # Without a crop all images of a set have one size; corrupted ones may have been brought to the model's before.
    if like.recipe.crop_padding is not None and size not in (like.stored_size, tuple(input_size[::-1])):
        (width, height), (own_width, own_height) = size, like.stored_size
        raise DataError(
            f"--corrupted {where}: images of {name} have {height} x {width} pixels, "
            f"those of the test data {own_height} x {own_width}"
        )
    return source


def _source(where: str, name: str, severity: int) -> Source:
    base = _base(where, name)
    if (base / name).is_dir():
        return FolderSource(base / name / str(severity))
    beside = [folder / "labels.npy" for folder in (base, _folder(where)) if (folder / "labels.npy").is_file()]
    if not beside:
        raise DataError(f"--corrupted {where}: {name}.npy has no labels.npy beside it")
    stored, targets = _array(where, base / f"{name}.npy"), _array(where, beside[0])
    count = len(stored) // 5
    if count == 0 or len(stored) != 5 * count or len(targets) not in (count, 5 * count):
        raise DataError(
            f"--corrupted {where}: {name}.npy holds {len(stored)} images for {len(targets)} labels, "
            f"five severities one after the other are expected"
        )
    if stored.dtype != np.uint8 or not (stored.ndim == 3 or (stored.ndim == 4 and stored.shape[-1] == 3)):
        raise DataError(
            f"--corrupted {where}: {name}.npy holds {stored.dtype} {stored.shape}, bytes (N, H, W, 3) are expected"
        )
    if targets.ndim != 1 or targets.dtype.kind not in "iu" or int(targets.min()) < 0:
        raise DataError(f"--corrupted {where}: labels.npy holds {targets.dtype} {targets.shape} and no class numbers")
    span = slice((severity - 1) * count, severity * count)
    return ArraySource(stored[span], targets[:count] if len(targets) == count else targets[span])


def _array(where: str, path: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise DataError(f"--corrupted {where}: {path.name} cannot be read: {text}") from error
    if array.ndim == 0:
        raise DataError(f"--corrupted {where}: {path.name} holds a single value")
    return array


def _base(where: str, name: str) -> Path:
    """Return the folder that holds a corruption: the given one, or the only one of its sub-folders that does."""
    folder = _folder(where)
    places = [folder, *sorted(child for child in folder.iterdir() if child.is_dir())]
    found = [place for place in places if (place / name).is_dir() or (place / f"{name}.npy").is_file()]
    if found[:1] == [folder] or len(found) == 1:
        return found[0]
    if found:
        several = " and in ".join(place.name for place in found[:2])
        raise DataError(f"--corrupted {where}: {name} lies in {several}, give one of them")
    raise DataError(f"--corrupted {where}: neither {name}/SEVERITY/CLASS/ nor {name}.npy with labels.npy is there")


@lru_cache(maxsize=4)
def _folder(where: str) -> Path:
    if not where.startswith(HUB_PREFIX):
        if not Path(where).is_dir():
            kind = "an archive, unpack it first" if Path(where).is_file() else "not a folder"
            raise DataError(f"--corrupted {where} is {kind}; a data set of the Hub is {HUB_PREFIX}OWNER/NAME")
        return Path(where)
    from huggingface_hub import snapshot_download

    repo = where.removeprefix(HUB_PREFIX)
    try:
        return Path(snapshot_download(repo, repo_type="dataset"))
    except Exception as error:  # whatever the Hub's client and its transport raise
        raise DataError(f"--corrupted: {explain(error, repo, doing='fetch')}") from error
