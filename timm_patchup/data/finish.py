"""The last steps of images, for a whole batch on the device: colour jitter, lighting, normalisation, random erasing.

Loaders send bytes, a quarter of the floats, and what was drawn per sample (``augment_params.py``).
"""

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from ..recipe.parts import AugmentSpec, ImageSpec
from .augment_params import AugmentParams
from .global_seed import seed_everything

# Weights of red, green and blue in Pillow's grey.
_GREY = (0.299, 0.587, 0.114)
# Values that a CPU core works on at once, so that they stay in its cache between the steps.
_IN_CACHE = 2**19
# Values of an image from which on a CPU jitters images one by one: what it saves outweighs the calls.
_LARGE = 2**15
# Buffers that wait for the next batch; one is enough unless the last batch is held while the next one is made.
_IDLE = 2


class Finish:
    """Turns bytes and drawn parameters into the input of a model.

    Args:
        images: mean and standard deviation.
        augment: for random erasing of training images; None if the images are only evaluated.
        device: where the images go.
    """

    def __init__(self, images: ImageSpec, augment: AugmentSpec | None, device: torch.device) -> None:
        self.device = device
        self.mean, self.std = (
            torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (images.mean, images.std)
        )
        self._erase: RandomErasing | None = None
        if augment is not None and augment.reprob:
            self._erase = RandomErasing(
                augment.reprob, mode=augment.remode, max_count=augment.recount, device=str(device)
            )
        self._buffers = Buffers()

    def __call__(self, pixels: Tensor, params: AugmentParams | None = None) -> Tensor:
        """Return uint8 pixels (B, C, H, W) as normalised float32 on the device.

        Random erasing moves the global generators.
        """
        # Memory that is not pinned belongs to a loader process, which uses it again: there the copy is waited for.
        pixels = pixels.to(self.device, non_blocking=pixels.is_pinned())
        jitter, shift, seeds = params or AugmentParams()
        on_cpu = self.device.type == "cpu"
        images = self._buffers.empty(pixels.shape) if on_cpu else torch.empty(pixels.shape, device=self.device)
        jitter, shift = (None if part is None else part.to(self.device, non_blocking=True) for part in (jitter, shift))
        chunk = max(1, _IN_CACHE // pixels[0].numel()) if on_cpu else len(pixels)
        for first in range(0, len(pixels), chunk):
            some = slice(first, first + chunk)
            part = images[some].copy_(pixels[some])
            if jitter is not None and on_cpu and part[0].numel() > _LARGE:
                for image, steps in zip(part, jitter[some].tolist()):
                    jitter_image_(image, steps)
            elif jitter is not None:
                jitter_(part, jitter[some])
            part.div_(255)
            if shift is not None:
                part.add_(shift[some, :, None, None])
            part.sub_(self.mean).div_(self.std)
        if self._erase is not None and seeds is not None:
            for image, seed in zip(images, seeds.tolist()):
                seed_everything(seed, self.device)
                self._erase(image)
        return images


def jitter_(images: Tensor, steps: Tensor) -> None:
    """Apply the steps of colour jitter in place.

    Args:
        images: float (B, C, H, W) in [0, 255].
        steps: (B, 3, 3), as in ``AugmentParams``.
    """
    for step in steps.unbind(dim=1):
        own, pixel, mean = (values[:, None, None, None] for values in step.unbind(dim=1))
        grey = _grey(images)
        average = grey.mean(dim=(2, 3), keepdim=True)
        images.mul_(own).add_(grey.mul_(pixel).add_(average.mul_(mean))).clamp_(0, 255)


def jitter_image_(image: Tensor, steps: Sequence[Sequence[float]]) -> None:
    """Do as ``jitter_``, bit for bit, for one image (C, H, W), without what a step multiplies by zero."""
    image = image[None]
    for own, pixel, mean in steps:
        grey = _grey(image) if pixel or mean else None
        average = grey.mean(dim=(2, 3), keepdim=True) if grey is not None and mean else None
        image.mul_(own)
        if grey is not None and pixel:
            image.add_(grey.mul_(pixel))
        if average is not None:
            image.add_(average.mul_(mean))
        image.clamp_(0, 255)


def _grey(images: Tensor) -> Tensor:
    """Return the grey values (B, 1, H, W) of images (B, C, H, W)."""
    channels = images.shape[1]
    weights = _GREY if channels == 3 else (1.0,)
    grey = images[:, :1] * weights[0]
    for channel in range(1, channels):
        grey.add_(images[:, channel : channel + 1], alpha=weights[channel])
    return grey


class Buffers:
    """Memory for batches on the CPU that is used again once no tensor is left in it.

    A fresh batch of large images comes from the system each time, and touching its pages takes longer than all the
    arithmetic on it.
    """

    def __init__(self) -> None:
        self._lent: list[tuple[np.ndarray, weakref.ref[np.ndarray]]] = []
        self._idle: list[np.ndarray] = []

    def empty(self, shape: torch.Size) -> Tensor:
        """Return an uninitialised float32 tensor."""
        lent, idle = [], self._idle
        for array, lent_view in self._lent:
            if lent_view() is None:
                idle.append(array)
            else:
                lent.append((array, lent_view))
        fitting = [array for array in idle if array.shape == tuple(shape)][:_IDLE]
        array = fitting.pop() if fitting else torch.empty(shape).numpy()
        # A tensor keeps the array it was made from alive for as long as any view or graph needs its memory.
        view = array.view()
        self._lent, self._idle = [*lent, (array, weakref.ref(view))], fitting
        return torch.from_numpy(view)
