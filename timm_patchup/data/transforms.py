"""From stored images to normalised tensors: timm's transforms, and padded crops and flips of small uint8 images.

Random numbers of a sample depend on the seed, the epoch and the sample's index only, so the number of processes, the
number of loader workers and resuming do not change it.
"""

import random
from typing import Any

import numpy as np
import torch
from timm.data import create_transform
from torch import Tensor
from torchvision.transforms import Compose, RandomVerticalFlip
from torchvision.transforms.functional import to_pil_image

from ..core.seeding import derive_seed
from ..recipe.parts import AugmentSpec, ImageSpec

# Krizhevsky et al. (2012): principal components of ImageNet's RGB values.
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))


class Lighting:
    """AlexNet's PCA lighting: add the principal components, each scaled by a normal weight of this std."""

    def __init__(self, std: float) -> None:
        self.std = std

    def __call__(self, image: Tensor) -> Tensor:
        """Return the image, (3, H, W) in [0, 1], with a random colour shift."""
        weights = torch.randn(3) * self.std * torch.tensor(_EIGENVALUES)
        return image + (torch.tensor(_EIGENVECTORS) @ weights).view(3, 1, 1)


class PaddedCrops:
    """Random crops with zero padding and horizontal flips, for whole uint8 batches."""

    def __init__(self, num_samples: int, *, padding: int, hflip: float, seed: int) -> None:
        self.num_samples, self.padding, self.hflip, self.seed = num_samples, padding, hflip, seed
        self._epoch: int | None = None
        self._table: tuple[Tensor, Tensor, Tensor] = (torch.empty(0), torch.empty(0), torch.empty(0))

    def __call__(self, images: Tensor, index: Tensor, epoch: int) -> Tensor:
        """Return one crop per image, uint8 (B, C, H, W), given the indices of the samples."""
        top, left, flip = (values[index].tolist() for values in self._draws(epoch))
        height, width = images.shape[-2:]
        padded = torch.nn.functional.pad(images, (self.padding,) * 4).numpy()
        crops = np.empty(tuple(images.shape), dtype=np.uint8)
        # A NumPy slice copies a small image in a microsecond; one gather for the whole batch takes three times as long.
        for position, (row, column, mirrored) in enumerate(zip(top, left, flip)):
            crop = padded[position, :, row : row + height, column : column + width]
            crops[position] = crop[:, :, ::-1] if mirrored else crop
        return torch.from_numpy(crops)

    def _draws(self, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            offsets = torch.randint(2 * self.padding + 1, (2, self.num_samples), generator=generator)
            flip = torch.rand(self.num_samples, generator=generator) < self.hflip
            self._epoch, self._table = epoch, (offsets[0], offsets[1], flip)
        return self._table


class Augmentation:
    """timm's training transforms of a single image, seeded per sample."""

    def __init__(self, augment: AugmentSpec, images: ImageSpec, *, crop: bool) -> None:
        """Create the transforms; with ``crop=False`` the image is already cropped and flipped."""
        self.seed, self.aug_splits = augment.seed, augment.aug_splits
        geometry, color, final = create_transform(
            images.size,
            is_training=True,
            scale=(augment.scale[0], augment.scale[1]),
            ratio=(augment.ratio[0], augment.ratio[1]),
            hflip=augment.hflip,
            vflip=augment.vflip,
            color_jitter=augment.color_jitter or None,  # type: ignore[arg-type]
            auto_augment=augment.aa,
            interpolation=augment.train_interpolation,
            mean=images.mean,
            std=images.std,
            re_prob=augment.reprob,
            re_mode=augment.remode,
            re_count=augment.recount,
            separate=True,
        )
        if augment.lighting:
            final.transforms.insert(1, Lighting(augment.lighting))  # after the scaling to [0, 1], before Normalize
        first = [step for step in geometry.transforms if crop or isinstance(step, RandomVerticalFlip)]
        self.geometry, self.color, self.final = Compose(first), color, final

    def __call__(self, image: Any, index: int, epoch: int) -> list[Tensor]:
        """Return an image, PIL or uint8 (C, H, W), as one normalised tensor (C, H, W) per split.

        Splits share crop and flips, and the first is clean, as in timm's AugMixDataset.
        """
        seed_everything(derive_seed(self.seed, epoch, index))
        image = self.geometry(to_pil_image(image) if isinstance(image, Tensor) else image)
        clean = [self.final(image)] if self.aug_splits else []
        return clean + [self.final(self.color(image)) for _ in range(max(self.aug_splits - 1, 1))]


def evaluation_transform(images: ImageSpec) -> Any:
    """Return timm's evaluation transform: resize, center crop, normalise."""
    return create_transform(
        images.size,
        is_training=False,
        crop_pct=images.crop_pct,
        crop_mode=images.crop_mode,
        interpolation=images.interpolation,
        mean=images.mean,
        std=images.std,
    )


def normalize(pixels: Tensor, images: ImageSpec) -> Tensor:
    """Return uint8 pixels (B, C, H, W) as normalised float32, contiguous."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (images.mean, images.std))
    return pixels.contiguous().float().div_(255).sub_(mean).div_(std)


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
