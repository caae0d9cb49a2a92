"""Labelled images as torch datasets, either decoded once into memory or on each access.

Samples are requested in batches by ``(epoch, sample)``. Random augmentation depends on the seed, the epoch and the
sample only; with ``EVALUATION`` in place of the epoch there is none. Batches are bytes: ``finish.py`` makes the input
of a model of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from ..core.sampling import derive_seed
from ..errors import DataError
from ..recipe.parts import AugmentSpec, ImageSpec
from .augment_params import AugmentParams, SampleParams
from .decode import Undecodable
from .encoded import Source
from .transforms import Augmentation, EvaluationTransform, PaddedCrops
from .workers import note_sample, stack_images

SampleKey = tuple[int, int]
EVALUATION = -1


class ByteBatch(NamedTuple):
    """A batch as it leaves a loader: uint8 (B, C, H, W), labels (B,), and the parameters of its augmentation."""

    pixels: Tensor
    labels: Tensor
    params: AugmentParams | None = None


class MemoryImages(Dataset):
    """Small images, decoded once and kept as uint8 (N, C, H, W).

    Args:
        source: the stored images.
        rows: int (N,), the rows of the source to use.
        images: size and normalisation.
        augment: augmentation of training samples; None if the images are only evaluated.
    """

    def __init__(self, source: Source, rows: np.ndarray, images: ImageSpec, augment: AugmentSpec | None = None) -> None:
        self.spec, self.augment = images, augment
        self.labels = torch.from_numpy(source.labels[rows].astype(np.int64))
        self.images = _decode(source, rows, images)
        self._crops: PaddedCrops | None = None
        self._augment: Augmentation | None = None
        if augment is not None:
            self._crops = PaddedCrops(
                len(rows),
                padding=images.crop_padding or 0,
                mode=augment.crop_padding_mode,
                hflip=augment.hflip,
                seed=derive_seed(augment.seed, 1),
            )
            self._augment = Augmentation(augment, images, crop=False) if augment.needs_single_images else None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: Sequence[SampleKey]) -> ByteBatch:
        epoch = keys[0][0]
        index = torch.tensor([sample for _, sample in keys])
        images, labels = self.images.index_select(0, index), self.labels[index]  # images[index] takes 25 times as long
        if epoch == EVALUATION:
            return ByteBatch(images, labels)
        if self._crops is None:
            raise ValueError("these images have no augmentation, so they cannot be used for training")
        images = self._crops(images, index, epoch)
        if self._augment is None:
            return ByteBatch(images, labels)
        samples = [self._augment(image, sample, epoch) for image, (_, sample) in zip(images, keys)]
        split_images, params, labels = by_split(samples, labels)
        return ByteBatch(torch.stack(split_images), labels, self._augment.on_device.stack(params))

    def describe(self, sample: int) -> str:
        """Return a name of a sample, for messages."""
        return f"sample {sample}"


class StoredImages(Dataset):
    """Images decoded on each access and passed through timm's transforms. Arguments as for ``MemoryImages``."""

    def __init__(self, source: Source, rows: np.ndarray, images: ImageSpec, augment: AugmentSpec | None = None) -> None:
        self.source, self.rows, self.spec, self.augment = source, rows, images, augment
        self.labels = torch.from_numpy(source.labels[rows].astype(np.int64))
        self._augment = None if augment is None else Augmentation(augment, images, crop=True)
        self._evaluate = EvaluationTransform(images)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: Sequence[SampleKey]) -> ByteBatch:
        labels = self.labels[[sample for _, sample in keys]]
        if keys[0][0] == EVALUATION:
            return ByteBatch(stack_images([self._evaluated(sample) for _, sample in keys]), labels)
        if self._augment is None:
            raise ValueError("these images have no augmentation, so they cannot be used for training")
        pil = self._augment.needs_pil
        samples = [self._augment(self._read(sample, pil=pil), sample, epoch) for epoch, sample in keys]
        split_images, params, labels = by_split(samples, labels)
        return ByteBatch(stack_images(split_images), labels, self._augment.on_device.stack(params))

    def _evaluated(self, sample: int) -> Tensor:
        image = self._read(sample, pil=self._evaluate.needs_pil)
        try:
            return self._evaluate(image)
        except Undecodable as error:
            message = f"cannot use the image {self.describe(sample)}: {error}; replace or remove it"
            raise DataError(message, retry=True) from error

    def _read(self, sample: int, *, pil: bool) -> Tensor | Image.Image:
        note_sample(sample)
        row = int(self.rows[sample])
        return self.source.image(row, _mode(self.spec)) if pil else self.source.rgb(row)

    def describe(self, sample: int) -> str:
        """Return the name of a sample's file, or its place in the dataset."""
        return self.source.describe(int(self.rows[sample]))


Images = MemoryImages | StoredImages


def by_split(
    samples: Sequence[Sequence[tuple[Tensor, SampleParams]]], labels: Tensor
) -> tuple[list[Tensor], list[SampleParams], Tensor]:
    """Return images, parameters and labels of some samples: all samples of the first split, then all of the next."""
    splits = list(zip(*samples))
    images, params = zip(*(made for split in splits for made in split))
    return list(images), list(params), labels.repeat(len(splits))


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
        image = source.image(int(row), mode)
        if image.size != (width, height):
            image = image.resize((width, height), resampling)
        decoded[position] = np.asarray(image).reshape(height, width, channels)
    return torch.from_numpy(decoded).permute(0, 3, 1, 2).contiguous()
