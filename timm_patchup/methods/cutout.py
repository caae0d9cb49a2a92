"""Cutout (DeVries and Taylor, 2017): one square of every image is set to zero.

Each image has a different square, centred anywhere, so that it is clipped at the border; the authors of PatchUp hide
the same square in all images of a batch. Zero is the mean colour, since images come normalised. The targets stay as
they are.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.draw import Change, DrawContext, Erase
from ..core.method import Method, register_method
from ..core.settings import setting


@register_method("cutout")
@dataclass(frozen=True, kw_only=True)
class Cutout(Method):
    """Erase a square of the images of any model."""

    length: int = setting(16, "side of the square in pixels", low=1)
    mask: Literal["sample", "batch"] = setting("sample", "one square per sample, or one for the batch")

    def change(self, context: DrawContext) -> Change:
        rows, columns = (self._covered(size, context) for size in context.shape[2:])
        return Erase((rows[:, :, None] & columns[:, None, :])[:, None], torch.ones((), device=context.device))

    def _covered(self, size: int, context: DrawContext) -> Tensor:
        """Draw which pixels along a side are inside each square: bool, (B or 1, size)."""
        squares = context.shape[0] if self.mask == "sample" else 1
        middle = torch.randint(size, (squares, 1), generator=context.generator, device="cpu")
        distance = torch.arange(size, device="cpu") - middle + self.length // 2
        return ((distance >= 0) & (distance < self.length)).to(context.device, non_blocking=True)
