"""Where features are in what a module returns: the map (B, C, H, W) that methods draw for, in the model's own layout.

Methods know nothing but (B, C, H, W). What a module really returns is only known once it has run: ``find_map`` reads
it from the output for two made-up images that differ in their lower half only.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor


@dataclass(frozen=True)
class FeatureMap:
    """Shape of one sample's features at a site, and whether the model keeps channels last, as NHWC."""

    channels: int
    height: int
    width: int
    nhwc: bool = False

    def fit(self, mask: Tensor) -> Tensor:
        """Return a mask (N, C, H, W) in the layout of the features."""
        return mask.permute(0, 2, 3, 1).contiguous() if self.nhwc else mask

    def to_nchw(self, features: Tensor) -> Tensor:
        """Return features in this layout as (B, C, H, W)."""
        return features.permute(0, 3, 1, 2) if self.nhwc else features


def probe_images(x: Tensor) -> Tensor:
    """Return two images of the size of ``x`` that are equal in their upper half only."""
    image = torch.arange(x[0].numel(), dtype=torch.float32, device=x.device).sin().view(1, *x.shape[1:])
    other = image.clone()
    other[..., x.shape[-2] // 2 :, :].neg_()
    return torch.cat([image, other])


def find_map(output: object, channels: int | None, images: Tensor) -> FeatureMap | None:
    """Return the map that a module gave for ``probe_images``, None if it gave something else.

    Args:
        output: what the module returned.
        channels: the number of channels that the model states, None if it states none.
        images: (2, C, H, W).
    """
    if isinstance(output, Tensor) and (layouts := _layouts(output.shape, channels, images.shape[-2], images.shape[-1])):
        return max(layouts, key=partial(_share_below, output))
    return None


def is_tokens(output: object) -> bool:
    """Whether a module gave tokens, (B, N, C)."""
    return isinstance(output, Tensor) and output.ndim == 3


def describe(output: object) -> str:
    """Return what a module gave, in a few words."""
    if isinstance(output, (tuple, list)):
        return f"a {type(output).__name__} of {len(output)}: {', '.join(map(_shape, output))}"
    if isinstance(output, Tensor):
        return f"tokens (B, N, C) = {_shape(output)}" if is_tokens(output) else f"a tensor {_shape(output)}"
    return f"a {type(output).__name__}"


def _layouts(shape: torch.Size, channels: int | None, height: int, width: int) -> list[FeatureMap]:
    """Return the layouts that have the stated number of channels and the image's proportions: mostly just one."""
    if len(shape) != 4:
        return []
    _, a, b, c = shape
    layouts = [FeatureMap(a, b, c), FeatureMap(c, a, b, nhwc=True)]
    layouts = [layout for layout in layouts if layout.channels == channels] or layouts
    rounding = max(1.0, width / height)  # an extra row is worth this many columns
    return [layout for layout in layouts if abs(layout.width - layout.height * width / height) <= rounding]


def _share_below(output: Tensor, layout: FeatureMap) -> float:
    """Return how much of the difference between two samples is in the lower half, if the layout is this one.

    For images that differ in their lower half it is near 1, but near 1/2 if the channels are taken for the rows.
    """
    difference = (output[0] - output[1]).abs().float()
    lower = difference.narrow(0 if layout.nhwc else 1, layout.height // 2, layout.height - layout.height // 2)
    return float(lower.sum() / difference.sum())


def _shape(output: object) -> str:
    if isinstance(output, Tensor):
        return f"(B, {', '.join(map(str, output.shape[1:]))})"
    return type(output).__name__
