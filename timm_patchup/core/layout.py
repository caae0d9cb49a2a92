"""Where features are in what a module returns: the map (B, C, H, W) that methods draw for, in the model's layout.

Methods know nothing but (B, C, H, W). A module may keep that map as NCHW or NHWC, as tokens of a grid behind prefix
tokens, in another order, with one row per patch, or return several such tensors. What has no place on the grid (class
and register tokens, a state of the whole image) is mixed as the targets are: its own share is p_u + (1 - p_u) * lam.

What a module really returns is only known once it has run: ``read_layouts`` reads it from the output for two made-up
images that differ in their lower half only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class FeatureMap:
    """Where one sample's features are in a tensor that a site gives.

    Attributes:
        channels: features per place.
        height: rows of the grid; 0 if the tensor has no place on it.
        width: columns of the grid.
        nhwc: whether a map keeps its channels last.
        prefix: None for a map; for tokens (B, N, C) how many precede the grid.
        order: the token of each place, row by row, if tokens are not in that order.
    """

    channels: int
    height: int
    width: int
    nhwc: bool = False
    prefix: int | None = None
    order: Tensor | None = field(default=None, compare=False)

    @property
    def nchw(self) -> bool:
        """Whether the tensor is the map itself, (B, C, H, W)."""
        return self.prefix is None and not self.nhwc

    @property
    def size(self) -> int:
        """Number of features that have a place on the grid."""
        return self.channels * self.height * self.width

    def to_nchw(self, features: Tensor) -> Tensor:
        """Return what has a place on the grid as a map (B, C, H, W)."""
        if self.prefix is None:
            return features.permute(0, 3, 1, 2) if self.nhwc else features
        tokens = features[:, self.prefix :]
        if self.order is not None:
            tokens = tokens[:, self.order]
        return tokens.transpose(1, 2).unflatten(2, (self.height, self.width))

    def with_nchw(self, features: Tensor, altered: Tensor) -> Tensor:
        """Return features with another map (B, C, H, W) in the place of theirs."""
        if self.prefix is None:
            return altered.permute(0, 2, 3, 1) if self.nhwc else altered
        tokens = altered.flatten(2).transpose(1, 2)
        if self.order is not None:
            tokens = tokens[:, self.order.argsort()]
        return torch.cat([features[:, : self.prefix], tokens], dim=1) if self.prefix else tokens

    def holds(self, features: Tensor) -> bool:
        """Whether features, with one row per sample, are as large as this map and what precedes it."""
        if self.prefix is not None:
            return features.shape[1:] == (self.prefix + self.height * self.width, self.channels)
        size = (self.height, self.width, self.channels) if self.nhwc else (self.channels, self.height, self.width)
        return features.shape[1:] == size

    def fit(self, mask: Tensor) -> Tensor:
        """Return a mask (1 or B, 1 or C, H, W) of another map for this one: the nearest features decide."""
        if mask[0].numel() > 1:
            for dim, new in enumerate((self.channels, self.height, self.width), start=1):
                old = mask.shape[dim]
                if old != new and (dim > 1 or old > 1):
                    nearest = (2 * torch.arange(new, device=mask.device) + 1) * old // max(2 * new, 1)
                    mask = mask.index_select(dim, nearest)
        return mask

    def lay_out(self, mask: Tensor, share: Tensor) -> Tensor:
        """Return a mask of this map as the tensor has its features.

        Args:
            mask: bool, (1 or B, 1 or C, H, W), or (1, 1, 1, 1) for everything.
            share: float, 0-d or (B,), how much of the features without a place is altered.

        Returns:
            bool, or float32 in [0, 1] if some features have no place.
        """
        if self.prefix is None:
            return mask.permute(0, 2, 3, 1).contiguous() if self.nhwc else mask
        tokens = mask.flatten(2).transpose(1, 2)
        if mask[0].numel() == 1:  # everything, on the grid or not
            return tokens
        if self.order is not None:
            tokens = tokens[:, self.order.argsort()]
        if self.prefix:
            masks = max(len(tokens), share.numel())
            outside = share.float().view(-1, 1, 1).expand(masks, self.prefix, tokens.shape[2])
            tokens = torch.cat([outside, tokens.float().expand(masks, -1, -1)], dim=1)
        return tokens.contiguous()


def widest_of(layouts: Sequence[FeatureMap]) -> FeatureMap:
    """Return the map with the most features: masks are drawn for it and fitted to the others."""
    return max(layouts, key=lambda layout: layout.size)


def is_features(part: object) -> bool:
    """Whether a part of an output holds features: sizes, positions and masks do not."""
    return isinstance(part, Tensor) and part.is_floating_point()


def features_in(output: Any) -> list[Tensor]:
    """Return the tensors of features in what a module returned: itself, or those in a tuple or a list."""
    return [part for part in (output if type(output) in (tuple, list) else [output]) if is_features(part)]


def with_features(output: Any, features: Sequence[Tensor]) -> Any:
    """Return an output with its features replaced."""
    if isinstance(output, Tensor):
        return features[0]
    rest = iter(features)
    return type(output)([next(rest) if is_features(part) else part for part in output])


def by_sample(features: Tensor, batch_size: int) -> Tensor:
    """Return features with one row per sample: TNT keeps the pixels of every patch as a separate row."""
    return features if len(features) == batch_size else features.reshape(batch_size, -1, features[0].numel())


def probe_images(x: Tensor) -> Tensor:
    """Return two images of the size of ``x`` that are equal in their upper half only."""
    image = torch.arange(x[0].numel(), dtype=torch.float32, device=x.device).sin().view(1, *x.shape[1:])
    other = image.clone()
    other[..., x.shape[-2] // 2 :, :].neg_()
    return torch.cat([image, other])


def read_layouts(
    output: Any, *, images: Tensor, channels: int | None, prefixes: Sequence[int], order: Tensor | None = None
) -> tuple[FeatureMap, ...] | None:
    """Return where the features are in each tensor that a module returned for ``probe_images``.

    Args:
        output: what the module returned.
        images: (2, C, H, W).
        channels: the number of channels that the model declares, None if it declares none.
        prefixes: how many tokens may precede the grid, the likeliest first.
        order: the token of each place, if it is known.

    Returns:
        None if there is no map, or a tensor that cannot be read as one.
    """
    given = features_in(output)
    if not given or any(len(tensor) % len(images) for tensor in given):
        return None
    tensors = [by_sample(tensor, len(images)) for tensor in given]
    has_maps = any(tensor.ndim == 4 for tensor in tensors)
    layouts = []
    for tensor in tensors:
        if tensor.ndim == 3 and has_maps:  # tokens beside maps have no place on the grid
            layouts.append(FeatureMap(tensor.shape[2], 0, 0, prefix=tensor.shape[1]))
            continue
        known = channels if len(tensors) == 1 else None
        fitting = _fitting(tensor.shape, known, images.shape[-2], images.shape[-1], prefixes, order)
        if not fitting:
            return None
        layouts.append(max(fitting, key=lambda layout: _share_below(tensor, layout)))
    return tuple(layouts)


def is_tokens(output: object) -> bool:
    """Whether a module returned tokens, (B, N, C)."""
    return any(tensor.ndim == 3 for tensor in features_in(output))


def describe(output: object) -> str:
    """Return what a module returned, in a few words."""
    if isinstance(output, (tuple, list)):
        return f"a {type(output).__name__} of {len(output)}: {', '.join(map(_shape, output))}"
    if isinstance(output, Tensor):
        return f"tokens (B, N, C) = {_shape(output)}" if output.ndim == 3 else f"a tensor {_shape(output)}"
    return f"a {type(output).__name__}"


def _fitting(
    shape: torch.Size,
    channels: int | None,
    height: int,
    width: int,
    prefixes: Sequence[int],
    order: Tensor | None,
) -> list[FeatureMap]:
    """Return the layouts that have the stated number of channels and the image's proportions: mostly just one.

    How many tokens are a prefix may be a guess, so their grid must come from one stride for rows and columns.
    """
    layouts: list[FeatureMap] = []
    if len(shape) == 4:
        _, a, b, c = shape
        layouts = [FeatureMap(a, b, c), FeatureMap(c, a, b, nhwc=True)]
    elif len(shape) == 3:
        for prefix in prefixes:
            places = shape[1] - prefix
            layouts += [
                FeatureMap(shape[2], rows, places // rows, prefix=prefix, order=order)
                for rows in range(1, places + 1)
                if places % rows == 0 and _has_one_stride(height, width, rows, places // rows)
            ]
    layouts = [layout for layout in layouts if layout.channels == channels] or layouts

    def error(layout: FeatureMap) -> float:
        return abs(layout.width - layout.height * width / height)

    rounding = max(1.0, width / height)  # an extra row is worth this many columns
    layouts = [layout for layout in layouts if error(layout) <= rounding]
    if len(shape) == 3 and layouts:
        best = min(map(error, layouts))
        layouts = [layout for layout in layouts if error(layout) == best]
    return layouts


def _has_one_stride(height: int, width: int, rows: int, columns: int) -> bool:
    """Whether some stride s makes ``rows`` of ``height`` and ``columns`` of ``width``, both rounded down or both up."""
    down = max(height / (rows + 1), width / (columns + 1)) < min(height / rows, width / columns)
    least, most = max(height / rows, width / columns), min(height / max(rows - 1, 1e-9), width / max(columns - 1, 1e-9))
    return down or least < most


def _share_below(output: Tensor, layout: FeatureMap) -> float:
    """Return how much of the difference between two samples is in the lower half, if the layout is this one.

    For images that differ in their lower half it is near 1, but near 1/2 if the channels are taken for the rows.
    """
    difference = (output[:1] - output[1:]).abs().float()
    below = layout.to_nchw(difference)[:, :, layout.height // 2 :]
    return float(below.sum() / difference.sum())


def _shape(output: object) -> str:
    if isinstance(output, Tensor):
        return f"(B, {', '.join(map(str, output.shape[1:]))})"
    return type(output).__name__
