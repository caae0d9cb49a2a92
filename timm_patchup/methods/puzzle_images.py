"""The images of Puzzle Mix, taken apart into the pieces of a grid and joined again: pure functions.

Piece i of n along a side of S pixels has the pixels p with ``p * n // S == i``, so that pieces differ by one pixel at
most where n does not divide S, and a grid that is k times finer divides each piece into k.
"""

import torch
from torch import Tensor


def join_images(
    x: Tensor,
    partner: Tensor,
    mask: Tensor,
    *,
    own_source: Tensor | None = None,
    partner_source: Tensor | None = None,
) -> Tensor:
    """Return the mixture of every image with its partner's; dtype and memory format of ``x`` are kept.

    Args:
        x: (B, D, H, W), not changed in place.
        partner: int64, (B,).
        mask: float, (B, R, C), weight of the own image in each block.
        own_source: int64, (B, R', C'), the piece of the sample's image that moves to each place; None moves nothing.
        partner_source: the same for the partner's image.
    """
    own, other = x, x[partner]
    if own_source is not None:
        own = move_pieces(own, own_source)
    if partner_source is not None:
        other = move_pieces(other, partner_source)
    mixed = torch.lerp(other, own, to_pixels(mask.to(x.dtype), *x.shape[2:])[:, None])
    channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return mixed.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def to_pixels(grid: Tensor, height: int, width: int) -> Tensor:
    """Give every pixel the value of its block: (B, R, C) -> (B, H, W)."""
    row, column = (torch.arange(size, device=grid.device) for size in (height, width))
    return grid[:, row * grid.shape[1] // height][:, :, column * grid.shape[2] // width]


def move_pieces(x: Tensor, source: Tensor) -> Tensor:
    """Put at every place of a grid the piece that ``source`` names: (B, D, H, W), int64 (B, R, C) -> (B, D, H, W).

    Where a piece is a pixel shorter than its place, its last row or column is repeated.
    """
    height, width = x.shape[2:]
    rows, columns = source.shape[1:]
    piece = to_pixels(source, height, width)
    row = _pixel_of(piece // columns, height, rows, dim=1)
    column = _pixel_of(piece % columns, width, columns, dim=2)
    index = (row * width + column).flatten(1)[:, None].expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, index).view_as(x)


def _pixel_of(part: Tensor, size: int, parts: int, *, dim: int) -> Tensor:
    """Return the row (dim 1) or column (dim 2) that each pixel is taken from, given the part: int64, (B, H, W)."""
    pixel = torch.arange(size, device=part.device)
    start = (torch.arange(parts + 1, device=part.device) * size + parts - 1) // parts
    offset = (pixel - start[pixel * parts // size]).view((1, -1, 1) if dim == 1 else (1, 1, -1))
    return torch.minimum(start[part] + offset, start[part + 1] - 1)


def unit_range(x: Tensor) -> Tensor:
    """Stretch each channel over the batch to [0, 1]: float32, the scale of colours before a user normalised them."""
    low, high = torch.aminmax(x.float().transpose(0, 1).flatten(1), dim=1)
    span = (high - low).clamp(min=1e-12)
    return (x.float() - low[:, None, None]) / span[:, None, None]
