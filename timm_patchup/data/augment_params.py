"""Parameters of the augmentation that runs on the device: drawn per sample in the loader, stacked to a batch.

``finish.py`` applies them. They come from the global generators, which are seeded per sample from (seed, epoch,
sample), so they are the same for any number of processes and loader workers, and after resuming.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.transforms import ColorJitter

# Krizhevsky et al. (2012): principal components of ImageNet's RGB values.
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))


class AugmentParams(NamedTuple):
    """The parameters of a batch; None for what the recipe does not use.

    Attributes:
        jitter: float32 (B, 3, 3), three steps of colour jitter in their drawn order. A step (a, b, c) replaces an image
            x by ``a * x + b * grey(x) + c * mean(grey(x))``.
        shift: float32 (B, 3), colour shift of the lighting, for images in [0, 1].
        erase: int64 (B,), seeds of random erasing.
    """

    jitter: Tensor | None = None
    shift: Tensor | None = None
    erase: Tensor | None = None


class SampleParams(NamedTuple):
    """The parameters of one sample: jitter as nine numbers, weights of the principal components, a seed."""

    jitter: list[float]
    lighting: Tensor | None
    erase: int


class DeviceAugment:
    """The random augmentation that the device applies, by its strengths; draws its parameters.

    Args:
        jitter: torchvision's colour jitter, None without it.
        lighting: standard deviation of the weights of AlexNet's PCA lighting, 0 without it.
        erasing: whether images are randomly erased.
    """

    def __init__(self, *, jitter: ColorJitter | None, lighting: float, erasing: bool) -> None:
        self.jitter, self.lighting, self.erasing = jitter, lighting, erasing

    def draw(self, *, jittered: bool = True) -> SampleParams:
        """Draw for one sample, from the global generators; the clean split of several is not jittered."""
        steps = [] if self.jitter is None else jitter_steps(self.jitter) if jittered else [1.0, 0.0, 0.0] * 3
        return SampleParams(
            steps,
            torch.randn(3) if self.lighting else None,
            random.getrandbits(32) if self.erasing else 0,
        )

    def stack(self, samples: Sequence[SampleParams]) -> AugmentParams:
        """Return the parameters of a batch."""
        shift = None
        if self.lighting:
            weights = torch.stack([sample.lighting for sample in samples if sample.lighting is not None])
            shift = (weights * self.lighting * torch.tensor(_EIGENVALUES)) @ torch.tensor(_EIGENVECTORS).T
        return AugmentParams(
            jitter=torch.tensor([sample.jitter for sample in samples]).view(-1, 3, 3) if self.jitter else None,
            shift=shift,
            erase=torch.tensor([sample.erase for sample in samples]) if self.erasing else None,
        )


def jitter_steps(jitter: ColorJitter) -> list[float]:
    """Draw brightness, contrast, saturation and their order; return the steps as in ``AugmentParams``, flat."""
    order, *factors = ColorJitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, None)
    steps: list[float] = []
    for kind in order.tolist():
        if kind == 3:  # hue, which timm's strength of jitter leaves alone
            continue
        factor = 1.0 if factors[kind] is None else factors[kind]
        steps += [factor, (1.0 - factor) * (kind == 2), (1.0 - factor) * (kind == 1)]
    return steps
