"""From stored images to normalised tensors, the same for the same (seed, epoch, sample) whoever loads it.

Small images are kept as bytes: padded crops and flips are done for a whole batch at once. Everything else is timm's.
What is random about a sample follows from the seed, the epoch and its index, so neither the number of processes and
loader workers nor a resume changes it.
"""

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from timm.data import create_transform
from torch import Tensor
from torchvision.transforms import Compose, RandomVerticalFlip
from torchvision.transforms.functional import to_pil_image

from ..core.seeding import derive_seed

if TYPE_CHECKING:
    from ..recipe import Recipe

# Krizhevsky et al. (2012): principal components of the colours of ImageNet.
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))


class Lighting:
    """AlexNet's PCA lighting: add the principal colours with normal weights of this standard deviation."""

    def __init__(self, std: float) -> None:
        self.std = std

    def __call__(self, image: Tensor) -> Tensor:
        """Return an image (3, H, W) of values in [0, 1] in another light."""
        weights = torch.randn(3) * self.std * torch.tensor(_EIGENVALUES)
        return image + (torch.tensor(_EIGENVECTORS) @ weights).view(3, 1, 1)


class PaddedCrops:
    """Random crops from zero padding and horizontal flips, of whole batches of bytes."""

    def __init__(self, num_samples: int, *, padding: int, hflip: float, seed: int) -> None:
        self.num_samples, self.padding, self.hflip, self.seed = num_samples, padding, hflip, seed
        self._epoch: int | None = None
        self._table: tuple[Tensor, Tensor, Tensor] = (torch.empty(0), torch.empty(0), torch.empty(0))

    def __call__(self, images: Tensor, index: Tensor, epoch: int) -> Tensor:
        """Return a crop of each image, uint8 (B, C, H, W), given the indices of the samples."""
        top, left, flip = (values[index].tolist() for values in self._draws(epoch))
        height, width = images.shape[-2:]
        padded = torch.nn.functional.pad(images, (self.padding,) * 4).numpy()
        crops = np.empty(tuple(images.shape), dtype=np.uint8)
        # Slices of NumPy copy a small image in a microsecond, three times faster than one gather for the batch.
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
    """timm's training transforms of one image with the recipe's keys; seeded for each sample."""

    def __init__(self, recipe: "Recipe", *, crop: bool) -> None:
        """Make the transforms; without ``crop`` the image comes cropped and mirrored already."""
        self.seed = recipe.seed
        geometry, colour, final = create_transform(
            (recipe.input_size[1], recipe.input_size[2]),
            is_training=True,
            scale=(recipe.scale[0], recipe.scale[1]),
            ratio=(recipe.ratio[0], recipe.ratio[1]),
            hflip=recipe.hflip,
            vflip=recipe.vflip,
            color_jitter=recipe.color_jitter or None,  # type: ignore[arg-type]
            auto_augment=recipe.aa,
            interpolation=recipe.train_interpolation,
            mean=tuple(recipe.mean),
            std=tuple(recipe.std),
            re_prob=recipe.reprob,
            re_mode=recipe.remode,
            re_count=recipe.recount,
            separate=True,
        )
        if recipe.lighting:
            final.transforms.insert(1, Lighting(recipe.lighting))  # between the scaling to [0, 1] and the normalisation
        first = [step for step in geometry.transforms if crop or isinstance(step, RandomVerticalFlip)]
        self.transform = Compose([*first, *colour.transforms, *final.transforms])

    def __call__(self, image: Any, index: int, epoch: int) -> Tensor:
        """Return one image, PIL or bytes (C, H, W), as a normalised tensor (C, H, W)."""
        seed_everything(derive_seed(self.seed, epoch, index))
        return self.transform(to_pil_image(image) if isinstance(image, Tensor) else image)


def needs_each_image(recipe: "Recipe") -> bool:
    """Whether the recipe asks for more than crops and flips, so that images must be worked on one by one."""
    return bool(recipe.color_jitter or recipe.lighting or recipe.aa or recipe.reprob or recipe.vflip)


def evaluation_transform(recipe: "Recipe") -> Any:
    """Return timm's transform for evaluation: resize, centre crop, normalise."""
    return create_transform(
        (recipe.input_size[1], recipe.input_size[2]),
        is_training=False,
        crop_pct=recipe.crop_pct,
        crop_mode=recipe.crop_mode,
        interpolation=recipe.interpolation,
        mean=tuple(recipe.mean),
        std=tuple(recipe.std),
    )


def normalize(images: Tensor, recipe: "Recipe") -> Tensor:
    """Return bytes (B, C, H, W) as normalised float32, contiguous."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (recipe.mean, recipe.std))
    return images.contiguous().float().div_(255).sub_(mean).div_(std)


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
