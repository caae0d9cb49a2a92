"""Cutout (DeVries and Taylor, 2017): one square of every image is set to zero.

Each image has a square of its own, centred anywhere, so that it is clipped at the border. Zero is the mean colour,
since images come normalised. The targets stay as they are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.draw import Change, Erase
from ..core.method import Method, Place, register_method
from ..core.settings import setting


@register_method("cutout")
@dataclass(frozen=True, kw_only=True)
class Cutout(Method):
    """Erase a square of the images of any model."""

    length: int = setting(16, "side of the square in pixels", low=1)

    def change(self, place: Place) -> Change:
        rows, columns = (self._covered(size, place) for size in place.shape[2:])
        return Erase((rows[:, :, None] & columns[:, None, :])[:, None], torch.ones((), device=place.device))

    def _covered(self, size: int, place: Place) -> Tensor:
        """Draw which pixels along a side are inside each sample's square: bool, (B, size)."""
        middle = torch.randint(size, (place.shape[0], 1), generator=place.generator)
        distance = torch.arange(size) - middle + self.length // 2
        return ((distance >= 0) & (distance < self.length)).to(place.device, non_blocking=True)
