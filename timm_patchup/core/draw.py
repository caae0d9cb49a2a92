"""Everything random about one batch: the stream it comes from, the ways to sample, and the Draw that records it.

The paper samples its masks outside the computation graph. Here the whole draw is made before the forward pass, from
one ``torch.Generator`` on the CPU, so that the same seed gives the same draws on every device; global random state is
neither read nor moved.
"""

import hashlib
import os
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from .checks import check_count, check_number
from .functional import rectangle_mask


@dataclass(frozen=True)
class Draw:
    """What was drawn for one batch. Kept until the next draw, so that a recomputed forward sees the same mask.

    Attributes:
        site: name of the place that is altered; None when the batch is left as it is.
        partner: int64, (B,), a permutation: sample ``i`` is mixed with sample ``partner[i]``; itself if nothing mixes.
        lam: weight of the sample's own features inside the altered region: 0 for a swap, 1 when nothing is altered.
        changed: bool, True where features are altered: (1, ...) for the batch or (B, ...), in the features' layout;
            None when nothing is altered.
        kept: float32, the paper's p_u: fraction of features not altered, 0-d, or (B,) with a mask for each sample.
        scale: None where samples are mixed. Where altered features are erased instead, and no partner takes part,
            the factor of all others, float32, 0-d.
    """

    site: str | None
    partner: Tensor
    lam: float
    changed: Tensor | None
    kept: Tensor
    scale: Tensor | None = None

    @property
    def mixes(self) -> bool:
        """Whether samples are mixed, and their targets with them: not where nothing is altered or only erased."""
        return self.site is not None and self.scale is None

    def check(self, batch_size: int) -> None:
        """Raise ValueError where a draw made by hand contradicts itself or a batch of this size."""
        if not isinstance(self.partner, Tensor) or self.partner.dtype is not torch.int64:
            raise TypeError(f"draw.partner must be an int64 tensor ({batch_size},), got {self.partner!r}")
        if self.partner.shape != (batch_size,):
            raise ValueError(f"draw.partner has shape {tuple(self.partner.shape)}, the batch needs ({batch_size},)")
        if not torch.equal(self.partner.sort().values.cpu(), torch.arange(batch_size)):
            raise ValueError(f"draw.partner must be a permutation of {batch_size} samples, got {self.partner.tolist()}")
        check_number("draw.lam", self.lam, low=0.0, high=1.0)
        if not isinstance(self.kept, Tensor) or self.kept.shape not in ((), (batch_size,)):
            raise TypeError(f"draw.kept must be a tensor, 0-d or ({batch_size},), got {self.kept!r}")
        for kept in self.kept.flatten().tolist():
            check_number("draw.kept", kept, low=0.0, high=1.0)
        if self.scale is not None:
            if not isinstance(self.scale, Tensor) or self.scale.ndim:
                raise TypeError(f"draw.scale must be None or a 0-d tensor, got {self.scale!r}")
            check_number("draw.scale", self.scale.item(), low=0.0)
        if self.site is None:
            if self.changed is not None:
                raise ValueError(f"draw.changed must be None when site is None, got a mask {tuple(self.changed.shape)}")
            return
        if self.changed is None:
            raise ValueError(f"draw.changed must be a bool mask when site is {self.site!r}, got None")
        if self.changed.dtype is not torch.bool:
            raise TypeError(f"draw.changed must be a bool mask of features, got {self.changed.dtype}")
        if self.changed.shape[0] not in (1, batch_size):
            raise ValueError(f"draw.changed holds {self.changed.shape[0]} masks, the batch needs 1 or {batch_size}")


@dataclass(frozen=True)
class Place:
    """Where a method draws what it alters, and with what.

    Attributes:
        site: name of the site.
        shape: of the features there, (B, C, H, W), whatever their layout in memory.
        generator: the batch's own, on the CPU.
        device: where the features are.
    """

    site: str
    shape: tuple[int, int, int, int]
    generator: torch.Generator
    device: torch.device


class Stream:
    """A generator that is seeded anew for each batch from (seed, rank, number of the batch).

    So ranks draw differently, the state is two integers, and a checkpoint that one rank wrote resumes every rank
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
            seed, count = (check_count(key, state[key], low=0) for key in ("seed", "count"))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"state of a mixer must hold the integers seed and count, got {state!r}") from error
        self.seed, self.count = seed, count


def derive_seed(*parts: int) -> int:
    """Return a seed of 32 bits that follows from whole numbers, such as (seed, rank, step)."""
    digest = hashlib.blake2b("/".join(str(part) for part in parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", 0))


def uniform(generator: torch.Generator) -> float:
    return torch.rand((), dtype=torch.float64, generator=generator).item()


def integer(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=generator))


def beta(alpha: float, generator: torch.Generator) -> float:
    """Sample Beta(alpha, alpha) as the share of one of two gammas.

    Gamma(alpha) is Gamma(alpha + 1) * U ** (1 / alpha): taken as logarithms, a tiny alpha does not underflow.
    """
    concentration = torch.full((2,), alpha + 1.0, dtype=torch.float64)
    gammas = torch._standard_gamma(concentration, generator=generator)
    powers = torch.rand(2, dtype=torch.float64, generator=generator).neg_().log1p_() / alpha
    first, second = gammas.log() + powers
    return (first - second).sigmoid().item()


def rectangle(
    height: int,
    width: int,
    *,
    alpha: float,
    generator: torch.Generator,
    device: torch.device,
) -> Tensor:
    """Sample CutMix's rectangle, bool (1, 1, H, W): of area 1 - Beta(alpha, alpha), around any place of the map."""
    lam = beta(alpha, generator)
    center = integer(height, generator), integer(width, generator)
    return rectangle_mask(height, width, lam=lam, center=center, device=device)


def bernoulli(shape: tuple[int, ...], rate: float, generator: torch.Generator, device: torch.device) -> Tensor:
    """Sample a bool mask of independent Bernoulli(rate) values.

    The gaps between successes of a Bernoulli process are geometric, so at the small rates of PatchUp drawing the gaps
    takes a hundredth of the random numbers, and only the positions travel to the device.
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
        gaps = torch.empty(size, dtype=torch.float64).geometric_(rate, generator=generator)
        positions = gaps.clamp_(max=total + 1).long().cumsum(0) + last
        parts.append(positions)
        last = int(positions[-1])
    positions = torch.cat(parts)
    return positions[positions < total]
