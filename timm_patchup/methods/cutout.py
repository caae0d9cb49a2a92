"""Cutout (DeVries and Taylor, 2017): one square of every image is set to zero.

Each image has a square of its own, whose middle may lie anywhere, so that it is clipped at the border. Zero is the mean
colour, since images come normalised. The targets stay as they are.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.checks import check_count
from ..core.draw import Place
from ..core.mixer import Mixer
from ..core.sites import INPUT
from .registry import register_method


class Cutout(Mixer):
    """Cutout at the input; any model will do.

    Args:
        model: the model.
        length: side of the square in pixels, at least 1; the paper takes 16 on CIFAR-10, 8 on CIFAR-100, 20 on SVHN.
        prob: probability that a batch is altered, in [0, 1].
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets, in [0, 1).
        seed: seed of the draws; each rank draws its own.

    Example:
        >>> mix = Cutout(model, length=8)
        >>> x, target = mix(x, y)
        >>> loss = mix.loss(model(x), target)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        length: int = 16,
        prob: float = 1.0,
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.length = check_count("length", length, low=1)
        super().__init__(
            model, prob=prob, sites=[INPUT], num_classes=num_classes, label_smoothing=label_smoothing, seed=seed
        )

    def settings(self) -> dict[str, Any]:
        return {"length": self.length} | super().settings()

    def alter(self, place: Place) -> tuple[Tensor, float]:
        rows, columns = (self._covered(size, place) for size in place.shape[2:])
        return (rows[:, :, None] & columns[:, None, :])[:, None], 0.0

    def rescale(self, kept: Tensor) -> Tensor:
        return torch.ones((), device=kept.device)

    def _covered(self, size: int, place: Place) -> Tensor:
        """Draw where along a side of so many pixels each sample's square lies: bool (B, size), True inside it."""
        middle = torch.randint(size, (place.shape[0], 1), generator=place.generator)
        distance = torch.arange(size) - middle + self.length // 2
        return ((distance >= 0) & (distance < self.length)).to(place.device, non_blocking=True)


register_method("cutout", Cutout)
