"""Random numbers: where they come from, and ways to sample from a ``torch.Generator`` on the CPU.

The same seed gives the same draws on every device; global random state is neither read nor moved. Numbers and masks
only: what they are for is decided in ``draw.py`` and by the methods. The device is always stated, as
``torch.set_default_device`` would put tensors where the generator is not.
"""

import hashlib
import os
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from .functional import rectangle_mask
from .settings import check_value


class Stream:
    """A generator that is seeded for each batch from (seed, rank, number of the batch).

    So ranks draw differently, the state is two integers, and a checkpoint written by one rank resumes every rank
    exactly where it was.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.count = 0
        self._generator = torch.Generator()

    def next(self) -> torch.Generator:
        """Return the generator for the next batch."""
        seed = derive_seed(self.seed, _rank(), self.count)
        self.count += 1
        return self._generator.manual_seed(seed)

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        try:
            seed, count = (check_value(key, state[key], int, low=0) for key in ("seed", "count"))
        except (KeyError, TypeError, UserError) as error:
            raise UserError(f"the state of a mixer must hold the integers seed and count, got {state!r}") from error
        self.seed, self.count = seed, count


def derive_seed(*parts: int) -> int:
    """Return a 32-bit seed that follows from whole numbers, such as (seed, rank, step)."""
    digest = hashlib.blake2b("/".join(str(part) for part in parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", 0))


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
    """Sample ``count`` independent values of Beta(alpha, alpha): float32, (count,)."""
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
