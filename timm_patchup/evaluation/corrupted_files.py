"""Corrupted test images that are ready: a folder, or a data set of the Hub that holds the same files.

Two layouts are known, those of the published sets: ``CORRUPTION/SEVERITY/CLASS/*.png`` (ImageNet-C, Tiny-ImageNet-C)
and ``CORRUPTION.npy`` with ``labels.npy``, the five severities one after the other (CIFAR-C).
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from ..data.source import HUB_PREFIX, DataError, FolderSource, Source
from ..data.splits import take_stratified
from .images import TestImages


class ArraySource:
    """Images (N, H, W) or (N, H, W, C) of bytes, as NumPy stores them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self.labels = images, labels.astype(np.int64)
        self.class_names = None

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(np.asarray(self._images[int(index)]))


def open_corrupted(where: str, name: str, severity: int, *, like: TestImages) -> TestImages:
    """Open one corruption at one severity, with as many samples and in the size of the clean test images.

    Raises:
        DataError: it is missing or does not fit.
    """
    folder = _folder(where)
    source = _source(folder, name, severity)
    classes = like.recipe.num_classes
    known = len(source.class_names) if source.class_names else int(source.labels.max()) + 1
    if known > classes or (source.class_names and known != classes):
        raise DataError(f"--corrupted {where}: {name} has {known} classes, the test data {classes}")
    rows = take_stratified(source.labels, len(like), seed=like.recipe.split_seed)
    return TestImages(source, rows, like.recipe)


def _source(folder: Path, name: str, severity: int) -> Source:
    images = folder / name / str(severity)
    if images.is_dir():
        return FolderSource(images)
    array, labels = folder / f"{name}.npy", folder / "labels.npy"
    if not array.is_file() or not labels.is_file():
        raise DataError(
            f"--corrupted {folder}: neither {name}/{severity}/CLASS/ nor {name}.npy with labels.npy is there"
        )
    try:
        stored = np.load(array, mmap_mode="r", allow_pickle=False)
        targets = np.load(labels, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"--corrupted {folder}: {name}.npy cannot be read: {error}") from error
    count = len(stored) // 5
    if count == 0 or len(stored) != 5 * count or len(targets) not in (count, 5 * count) or stored.dtype != np.uint8:
        raise DataError(
            f"--corrupted {folder}: {name}.npy holds {stored.dtype} {stored.shape} for {len(targets)} labels, "
            f"bytes of five severities one after the other are expected"
        )
    span = slice((severity - 1) * count, severity * count)
    return ArraySource(stored[span], targets[:count] if len(targets) == count else targets[span])


@lru_cache(maxsize=4)
def _folder(where: str) -> Path:
    if not where.startswith(HUB_PREFIX):
        if not Path(where).is_dir():
            raise DataError(f"--corrupted {where} is not a folder; a data set of the Hub is {HUB_PREFIX}OWNER/NAME")
        return Path(where)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(where.removeprefix(HUB_PREFIX), repo_type="dataset"))
    except Exception as error:  # whatever the Hub's client and its transport raise
        text = " ".join(str(error).split())[:200]
        raise DataError(f"--corrupted {where}: cannot be read from the Hub: {text}") from error
