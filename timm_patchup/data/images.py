"""Labelled images as torch datasets, either decoded once into memory or on each access.

Samples are requested in batches by ``(epoch, sample)``. Random augmentation depends on the seed, the epoch and the
sample only; with ``EVALUATION`` in place of the epoch there is none.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..core.seeding import derive_seed
from ..recipe.parts import AugmentSpec, ImageSpec
from .source import Source
from .transforms import Augmentation, PaddedCrops, evaluation_transform, normalize

SampleKey = tuple[int, int]
EVALUATION = -1


class MemoryImages(Dataset):
    """Small images, decoded once and kept as uint8 (N, C, H, W).

    Args:
        source: the stored images.
        rows: int (N,), the rows of the source to use.
        images: size and normalisation.
        augment: augmentation of training samples; None if the images are only evaluated.
    """

    def __init__(self, source: Source, rows: np.ndarray, images: ImageSpec, augment: AugmentSpec | None = None) -> None:
        self.spec = images
        self.labels = torch.from_numpy(source.labels[rows].astype(np.int64))
        self.images = _decode(source, rows, images)
        self._crops: PaddedCrops | None = None
        self._augment: Augmentation | None = None
        if augment is not None:
            padding, seed = images.crop_padding or 0, derive_seed(augment.seed, 1)
            self._crops = PaddedCrops(len(rows), padding=padding, hflip=augment.hflip, seed=seed)
            self._augment = Augmentation(augment, images, crop=False) if augment.needs_single_images else None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: Sequence[SampleKey]) -> tuple[Tensor, Tensor]:
        epoch = keys[0][0]
        index = torch.tensor([sample for _, sample in keys])
        images, labels = self.images[index], self.labels[index]
        if epoch == EVALUATION:
            return normalize(images, self.spec), labels
        if self._crops is None:
            raise ValueError("these images have no augmentation, so they cannot be used for training")
        images = self._crops(images, index, epoch)
        if self._augment is None:
            return normalize(images, self.spec), labels
        return by_split([self._augment(image, sample, epoch) for image, (_, sample) in zip(images, keys)], labels)


class StoredImages(Dataset):
    """Images decoded on each access and passed through timm's transforms. Arguments as for ``MemoryImages``."""

    def __init__(self, source: Source, rows: np.ndarray, images: ImageSpec, augment: AugmentSpec | None = None) -> None:
        self.source, self.rows = source, rows
        self.mode = _mode(images)
        self.labels = torch.from_numpy(source.labels[rows].astype(np.int64))
        self._augment = None if augment is None else Augmentation(augment, images, crop=True)
        self._evaluate = evaluation_transform(images)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: Sequence[SampleKey]) -> tuple[Tensor, Tensor]:
        return by_split([self._load(epoch, sample) for epoch, sample in keys], self.labels[[key[1] for key in keys]])

    def _load(self, epoch: int, sample: int) -> list[Tensor]:
        image = self.source.image(self.rows[sample]).convert(self.mode)
        if epoch == EVALUATION:
            return [self._evaluate(image)]
        if self._augment is None:
            raise ValueError("these images have no augmentation, so they cannot be used for training")
        return self._augment(image, sample, epoch)


Images = MemoryImages | StoredImages


def by_split(samples: Sequence[Sequence[Tensor]], labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the images of some samples and their labels: all samples of the first split, then all of the next."""
    splits = list(zip(*samples))
    return torch.stack([image for split in splits for image in split]), labels.repeat(len(splits))


def open_images(source: Source, rows: np.ndarray, images: ImageSpec, augment: AugmentSpec | None = None) -> Images:
    """Return the rows of a source as a dataset: in memory if ``crop_padding`` is set, else decoded on each access."""
    return (StoredImages if images.crop_padding is None else MemoryImages)(source, rows, images, augment)


def _mode(images: ImageSpec) -> str:
    return "RGB" if images.input_size[0] == 3 else "L"


def _decode(source: Source, rows: np.ndarray, images: ImageSpec) -> Tensor:
    from timm.data.transforms import str_to_pil_interp

    channels, height, width = images.input_size
    mode, resampling = _mode(images), str_to_pil_interp(images.interpolation)
    decoded = np.empty((len(rows), height, width, channels), dtype=np.uint8)
    for position, row in enumerate(rows):
        image = source.image(row).convert(mode)
        if image.size != (width, height):
            image = image.resize((width, height), resampling)
        decoded[position] = np.asarray(image).reshape(height, width, channels)
    return torch.from_numpy(decoded).permute(0, 3, 1, 2).contiguous()
