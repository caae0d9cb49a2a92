"""What a loader does with single images, before they leave it as bytes: timm's crops, flips and policies.

Colours and normalisation follow on the device (``finish.py``). Random numbers of a sample depend on the seed, the epoch
and the sample's index only, so the number of processes, the number of loader workers and resuming do not change it.
"""

import random
from copy import copy
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import create_transform
from timm.data.transforms import MaybePILToTensor, RandomResizedCropAndInterpolation
from torch import Tensor
from torchvision.transforms import CenterCrop, ColorJitter, Compose, RandomVerticalFlip, Resize, v2
from torchvision.transforms.functional import to_pil_image

from ..core.sampling import derive_seed
from ..recipe.parts import AugmentSpec, ImageSpec
from .augment_params import DeviceAugment, SampleParams
from .decode import MOST_PIXELS, Undecodable, to_pixels
from .global_seed import seed_everything


class PaddedCrops:
    """Random crops from padding and horizontal flips, for whole uint8 batches.

    Args:
        num_samples: number of samples in the dataset.
        padding: pixels on each side.
        mode: what fills them: ``"constant"`` (black), ``"edge"``, ``"reflect"`` or ``"symmetric"``, which mean the same
            to torchvision and NumPy.
        hflip: probability of a flip.
        seed: seed of the draws.
    """

    def __init__(self, num_samples: int, *, padding: int, mode: str = "constant", hflip: float, seed: int) -> None:
        self.num_samples, self.padding, self.mode, self.hflip, self.seed = num_samples, padding, mode, hflip, seed
        self._epoch: int | None = None
        self._table: tuple[Tensor, Tensor, Tensor] = (torch.empty(0), torch.empty(0), torch.empty(0))

    def __call__(self, images: Tensor, index: Tensor, epoch: int) -> Tensor:
        """Return one crop per image, uint8 (B, C, H, W), given the indices of the samples."""
        top, left, flip = (values[index].tolist() for values in self._draws(epoch))
        height, width = images.shape[-2:]
        padded = self._pad(images)
        crops = np.empty(tuple(images.shape), dtype=np.uint8)
        # A NumPy slice copies a small image in a microsecond; one gather for the whole batch takes three times as long.
        for position, (row, column, mirrored) in enumerate(zip(top, left, flip)):
            crop = padded[position, :, row : row + height, column : column + width]
            crops[position] = crop[:, :, ::-1] if mirrored else crop
        return torch.from_numpy(crops)

    def _pad(self, images: Tensor) -> np.ndarray:
        if self.mode == "constant":
            return torch.nn.functional.pad(images, (self.padding,) * 4).numpy()  # NumPy takes six times as long
        around = (self.padding, self.padding)
        return np.pad(images.numpy(), ((0, 0), (0, 0), around, around), mode=self.mode)  # type: ignore[call-overload]

    def _draws(self, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            offsets = torch.randint(2 * self.padding + 1, (2, self.num_samples), generator=generator)
            flip = torch.rand(self.num_samples, generator=generator) < self.hflip
            self._epoch, self._table = epoch, (offsets[0], offsets[1], flip)
        return self._table


class CropOfBytes:
    """timm's random resized crop with timm's own draws, applied to uint8 tensors."""

    def __init__(self, crop: RandomResizedCropAndInterpolation) -> None:
        self.crop = crop

    def __call__(self, image: Tensor) -> Tensor:
        """Return a crop of an image (C, H, W) at the target size."""
        crop = self.crop
        top, left, height, width = crop.get_params(image, crop.scale, crop.ratio)
        chosen = crop.interpolation
        interpolation = random.choice(chosen) if isinstance(chosen, (tuple, list)) else chosen
        return v2.functional.resized_crop(image, top, left, height, width, list(crop.size), interpolation)


class Augmentation:
    """The training transforms of a single image, seeded per sample: timm's, in timm's order.

    Attributes:
        needs_pil: whether images must be Pillow's, for timm's policies; otherwise they are uint8 tensors.
    """

    def __init__(self, augment: AugmentSpec, images: ImageSpec, *, crop: bool) -> None:
        """Create the transforms; with ``crop=False`` the image is already cropped and flipped."""
        self.seed, self.aug_splits = augment.seed, augment.aug_splits
        geometry, color, _ = create_transform(
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
            separate=True,
        )
        steps = [step for step in geometry.transforms if crop or isinstance(step, RandomVerticalFlip)]
        policies = [step for step in color.transforms if not isinstance(step, ColorJitter)]
        self.needs_pil = bool(policies) or (crop and not _resizes_alike(images, augment.train_interpolation))
        if not self.needs_pil and crop:
            steps[0] = CropOfBytes(steps[0])
        self.geometry, self.policies = Compose(steps), Compose(policies)
        self.on_device = DeviceAugment(
            jitter=next((step for step in color.transforms if isinstance(step, ColorJitter)), None),
            lighting=augment.lighting,
            erasing=augment.reprob > 0,
        )

    def __call__(self, image: Any, index: int, epoch: int) -> list[tuple[Tensor, SampleParams]]:
        """Return an image, PIL or uint8 (C, H, W), as uint8 (C, H, W), and its parameters for the device, per split.

        Splits share crop and flips, and the first is clean, as in timm's AugMixDataset.
        """
        seed_everything(derive_seed(self.seed, epoch, index))
        if self.needs_pil and isinstance(image, Tensor):
            image = to_pil_image(image)
        image = self.geometry(image)
        clean = [(_to_bytes(image), self.on_device.draw(jittered=False))] if self.aug_splits else []
        times = max(self.aug_splits - 1, 1)
        augmented = [(_to_bytes(self.policies(image)), self.on_device.draw()) for _ in range(times)]
        return clean + augmented

    def try_policies(self) -> None:
        """Apply every operation of timm's policies to a small image, so that one that fails does so now."""
        image, state = Image.new("RGB", (8, 8)), random.getstate()
        for policy in self.policies.transforms:
            groups = getattr(policy, "policy", None) or [getattr(policy, "ops", ())]
            for operation in (one for group in groups for one in group):
                always = copy(operation)
                always.prob = 1.0
                always(image)
        random.setstate(state)


def _to_bytes(image: Tensor | Image.Image) -> Tensor:
    return to_pixels(image) if isinstance(image, Image.Image) else image


class EvaluationTransform:
    """timm's evaluation transform without normalisation: resize and centre crop.

    Attributes:
        needs_pil: whether images must be Pillow's; otherwise they are uint8 tensors.
    """

    def __init__(self, images: ImageSpec) -> None:
        transform = create_transform(
            images.size,
            is_training=False,
            crop_pct=images.crop_pct,
            crop_mode=images.crop_mode,
            interpolation=images.interpolation,
            mean=images.mean,
            std=images.std,
            normalize=False,
        )
        plain = all(isinstance(step, (Resize, CenterCrop, MaybePILToTensor)) for step in transform.transforms)
        self.needs_pil = not (plain and _resizes_alike(images, images.interpolation))
        if not self.needs_pil:
            # Resize of transforms.v2 works on bytes, Resize of v1 on a float copy.
            transform = Compose(
                [
                    v2.Resize(step.size, step.interpolation) if isinstance(step, Resize) else step
                    for step in transform.transforms
                ]
            )
        self.transform = transform

        self._shorter_side = max(images.size) / images.crop_pct if images.crop_mode == "center" else 0.0

    def __call__(self, image: Any) -> Tensor:
        """Return an image, PIL or uint8 (C, H, W), as uint8 (C, H, W) of the model's size.

        Raises:
            Undecodable: it is so narrow that it would fill the memory before the crop.
        """
        width, height = image.size if isinstance(image, Image.Image) else (image.shape[2], image.shape[1])
        resized = width * height * (self._shorter_side / min(width, height)) ** 2
        if resized > MOST_PIXELS > width * height:
            raise Undecodable(f"it is too narrow, {width} x {height}: it would be resized to {resized:,.0f} pixels")
        return self.transform(image)


def _resizes_alike(images: ImageSpec, interpolation: str) -> bool:
    """Return whether bytes can be resized as tensors: torch's nearest pixels are other ones than Pillow's.

    Grey images are made by Pillow, too, because colours are weighted there.
    """
    return images.input_size[0] == 3 and interpolation != "nearest"
