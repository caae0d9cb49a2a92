"""Ways to sample from a ``torch.Generator`` on the CPU, so that the same seed gives the same draws on every device.

Numbers and masks only: what they are for is decided in ``make_draw.py`` and by the methods. The device is always
stated, as ``torch.set_default_device`` would put tensors where the generator is not.
"""

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt

import torch
from torch import Tensor

from .functional import rectangle_mask


def uniform(generator: torch.Generator) -> float:
    return torch.rand((), dtype=torch.float64, generator=generator, device="cpu").item()


def integer(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=generator, device="cpu"))


def weighted(weights: Sequence[float], generator: torch.Generator) -> int:
    """Sample an index with probability proportional to its weight."""
    ends = list(accumulate(weights))
    return min(bisect(ends, uniform(generator) * ends[-1]), len(ends) - 1)  # a product may be rounded up to the end


def beta(alpha: float, generator: torch.Generator) -> float:
    """Sample Beta(alpha, alpha) as the share of one of two gammas.

    Gamma(alpha) is Gamma(alpha + 1) * U ** (1 / alpha); in logarithms, a tiny alpha does not underflow.
    """
    concentration = torch.full((2,), alpha + 1.0, dtype=torch.float64, device="cpu")
    gammas = torch._standard_gamma(concentration, generator=generator)
    powers = torch.rand(2, dtype=torch.float64, generator=generator, device="cpu").neg_().log1p_() / alpha
    first, second = gammas.log() + powers
    return (first - second).sigmoid().item()


def betas(count: int, alpha: float, generator: torch.Generator) -> Tensor:
    """Sample as many independent values of Beta(alpha, alpha): float32, (count,)."""
    concentration = torch.full((2, count), alpha + 1.0, dtype=torch.float64, device="cpu")
    gammas = torch._standard_gamma(concentration, generator=generator)
    powers = torch.rand(2, count, dtype=torch.float64, generator=generator, device="cpu").neg_().log1p_() / alpha
    first, second = gammas.log() + powers
    return (first - second).sigmoid().float()


def rectangle(
    height: int,
    width: int,
    *,
    alpha: float,
    generator: torch.Generator,
    device: torch.device,
) -> Tensor:
    """Sample CutMix's rectangle, bool (1, 1, H, W): of area 1 - Beta(alpha, alpha), centred anywhere on the map."""
    lam = beta(alpha, generator)
    center = integer(height, generator), integer(width, generator)
    return rectangle_mask(height, width, lam=lam, center=center, device=device)


def bernoulli(shape: tuple[int, ...], rate: float, generator: torch.Generator, device: torch.device) -> Tensor:
    """Sample a bool mask of independent Bernoulli(rate) values.

    The gaps between successes of a Bernoulli process are geometric, so at the small rates of PatchUp drawing the gaps
    needs a hundredth of the random numbers, and only the positions are copied to the device.
    """
    total = torch.Size(shape).numel()
    mask = torch.zeros(total, dtype=torch.bool, device=device)
    if rate >= 1.0:
        mask.fill_(True)
    elif rate > 0.0:
        mask[_success_positions(total, rate, generator).to(device, non_blocking=True)] = True
    return mask.view(shape)


def _success_positions(total: int, rate: float, generator: torch.Generator) -> Tensor:
    expected = total * rate
    size = int(expected + 6.0 * sqrt(expected) + 16)
    parts: list[Tensor] = []
    last = -1
    while last < total:
        gaps = torch.empty(size, dtype=torch.float64, device="cpu").geometric_(rate, generator=generator)
        positions = gaps.clamp_(max=total + 1).long().cumsum(0) + last
        parts.append(positions)
        last = int(positions[-1])
    positions = torch.cat(parts) if len(parts) > 1 else parts[0]
    return positions[: int(torch.searchsorted(positions, total))]
