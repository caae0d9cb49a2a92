"""The operation with its draw, as the paper writes it, as the mixer does it, and beside Manifold Mixup."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from timm_patchup.core.functional import grow_blocks, kept_fraction, like_memory, seed_rate
from timm_patchup.core.hooks import indices_for_graph, mask_for_graph
from timm_patchup.core.sampling import bernoulli, beta

GAMMA, BLOCK, ALPHA = 0.5, 7, 2.0
SHAPES = ((100, 64, 32, 32), (32, 256, 56, 56))


def naive(x: Tensor, mode: str) -> Tensor:
    """The paper's algorithm 1 as written: a mask expanded over the batch, pooled and multiplied."""
    rate = seed_rate(GAMMA, BLOCK, x.shape[2], x.shape[3])
    seeds = torch.bernoulli(torch.full_like(x[0], rate)).expand(x.shape)
    holes = F.max_pool2d(seeds, (BLOCK, BLOCK), (1, 1), (BLOCK // 2, BLOCK // 2))
    mask = 1 - holes
    unchanged = mask * x
    partner = torch.randperm(len(x))
    patches = holes * x
    if mode == "hard":
        patches = patches[partner]
    else:
        lam = torch.distributions.Beta(ALPHA, ALPHA).sample()
        patches = patches * lam + patches[partner] * (1 - lam)
    return unchanged + patches


def manifold_mixup(x: Tensor) -> Tensor:
    lam = torch.distributions.Beta(ALPHA, ALPHA).sample()
    return lam * x + (1 - lam) * x[torch.randperm(len(x))]


def patchup(x: Tensor, mode: str, generator: torch.Generator, mix: Callable[..., Tensor]) -> Tensor:
    """What the mixer does at a hidden site: draw the mask and lam, then mix."""
    changed, partner, inverse = draw(x, generator)
    lam = torch.full((), beta(ALPHA, generator)) if mode == "soft" else None
    return mix(x, mask_for_graph(changed), partner, lam=lam, inverse=inverse)


def draw(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The mask, in the memory format of ``x``, the partners and their inverse."""
    rate = seed_rate(GAMMA, BLOCK, x.shape[2], x.shape[3])
    changed = like_memory(grow_blocks(bernoulli((1, *x.shape[1:]), rate, generator, x.device), BLOCK), x)
    kept_fraction(changed)
    partner, inverse = indices_for_graph(torch.randperm(len(x), generator=generator))
    return changed, partner, inverse


def lerp_neighbours(tensors: tuple[Tensor, ...], changed: Tensor) -> None:
    """Mix every sample with the next in one call per tensor: the least that torch needs for features and gradient."""
    weight = changed.to(tensors[0].dtype)
    for x in tensors:
        mixed = torch.empty_like(x)
        torch.lerp(x[:-1], x[1:], weight, out=mixed[1:])
