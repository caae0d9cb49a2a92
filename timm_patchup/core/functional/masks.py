"""The binary mask of PatchUp: at which rate features seed blocks (eq. 2), the blocks grown from seeds, the rectangle of
the input space, and the share of features that a mask leaves alone.
"""

from functools import lru_cache
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor


def fit_block(block_size: int, height: int, width: int) -> tuple[int, int]:
    """Return the block's height and width on a map: a block larger than the map is as large as the map."""
    return min(block_size, height), min(block_size, width)


def seed_rate(gamma: float, block_size: int, height: int, width: int) -> float:
    """Return gamma_adj (eq. 2), the rate at which single features seed a block, capped at 1.

    The paper writes it for square maps; area over block area over valid region is the same for any H x W.
    """
    block_height, block_width = fit_block(block_size, height, width)
    valid = (height - block_height + 1) * (width - block_width + 1)
    return min(1.0, gamma * height * width / (block_height * block_width * valid))


def expected_coverage(rate: float, block_size: int, height: int, width: int) -> float:
    """Return the expected share of a map inside blocks if every feature seeds one with this rate."""
    rows, columns = (_seeds_per_place(block_size, size) for size in (height, width))
    counts = torch.outer(rows, columns)
    return float((1.0 - (1.0 - torch.tensor(rate, dtype=torch.float64, device="cpu")) ** counts).mean())


@lru_cache(maxsize=256)
def exact_seed_rate(gamma: float, block_size: int, height: int, width: int) -> float:
    """Return the rate at which blocks cover gamma of the map on average, whatever its size.

    gamma_adj (eq. 2) neglects that blocks overlap and are clipped at the border: it covers less than gamma of a large
    map and nearly all of one that is hardly larger than a block. The exact rate r solves mean(1 - (1 - r) ** n) = gamma
    over all places, each of which n seeds can cover.
    """
    if gamma in (0.0, 1.0):
        return gamma
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if expected_coverage(middle, block_size, height, width) < gamma else (low, middle)
    return (low + high) / 2.0


def _seeds_per_place(block_size: int, size: int) -> Tensor:
    """Return how many seeds along a side can cover each of its places: float64, (size,)."""
    length = min(block_size, size)
    place = torch.arange(size, dtype=torch.float64, device="cpu")
    before, after = length // 2, (length - 1) // 2
    return (place + before).clamp(max=size - 1) - (place - after).clamp(min=0) + 1


def grow_blocks(seeds: Tensor, block_size: int) -> Tensor:
    """Grow every seed to a block: a stride-1 max-pool of the seeds, done exactly with a few shifted ORs.

    A block of even size extends one feature further up and left than down and right, as in timm's DropBlock.

    Args:
        seeds: bool, (..., H, W).
        block_size: side length of the blocks, at least 1; cut to the map if the map is smaller.

    Returns:
        bool, the shape of ``seeds``: True inside blocks.
    """
    height, width = seeds.shape[-2:]
    block_height, block_width = fit_block(block_size, height, width)
    padding = ((block_width - 1) // 2, block_width // 2, (block_height - 1) // 2, block_height // 2)
    padded = F.pad(seeds.reshape(-1, height, width), padding)
    # In one long row every shift is a whole read of memory; the padding keeps blocks from reaching the next line.
    row = padded.flatten()
    for length, step in ((block_width, 1), (block_height, padded.shape[-1])):
        covered = 1
        while covered < length:
            further = min(covered, length - covered)
            row = row[: -further * step] | row[further * step :]
            covered += further
    # A copy without the padding, which a view would keep in memory and skip in every read.
    return row.as_strided((len(padded), height, width), padded.stride()).contiguous().view(seeds.shape)


def rectangle_mask(
    height: int,
    width: int,
    *,
    lam: float,
    center: tuple[int, int],
    device: torch.device | None = None,
) -> Tensor:
    """Return CutMix's rectangle for the input space (k = 0), clipped at the border.

    Args:
        height: height of the image.
        width: width of the image.
        lam: in [0, 1]; the rectangle has sqrt(1 - lam) of each side, before clipping.
        center: row and column of the rectangle's middle.
        device: where to make the mask.

    Returns:
        bool, (1, 1, H, W): True inside the rectangle.
    """
    ratio = sqrt(1.0 - lam)
    spans = []
    for size, middle in zip((height, width), center):
        length = int(size * ratio)
        start = middle - length // 2
        spans.append(slice(max(start, 0), min(start + length, size)))
    changed = torch.zeros(1, 1, height, width, dtype=torch.bool, device=device)
    changed[:, :, spans[0], spans[1]] = True
    return changed


def kept_fraction(changed: Tensor) -> Tensor:
    """Return p_u, the fraction of features that are not altered: float32, 0-d, or (N,) for N masks."""
    one = len(changed) == 1 and changed.dtype is torch.bool
    altered = changed.count_nonzero() if one else changed.flatten(1).sum(dim=1).squeeze(0)  # counting is faster
    return 1.0 - altered.float() / changed[0].numel()
