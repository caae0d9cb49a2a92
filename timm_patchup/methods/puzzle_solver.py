"""The optimisation inside Puzzle Mix (Kim et al., 2020) as pure functions on whole batches: nothing is drawn here.

A mask gives every block of a grid the own image's weight z in {0, 1/(L-1), ..., 1}. Its energy (eq. 5 of the paper)
is the saliency that the mask hides, plus smoothness of the labels and of the data across the edges of the
4-neighbourhood, minus the log of a binomial prior with mean lam. Then the salient blocks of each image are
transported to where its mask shows them. Weights are scaled as in the authors' experiments, the prior by 1 / blocks and
the edges by 1 / (16 * sqrt(blocks)), so that one setting serves every grid.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb, log, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class MaskProblem:
    """The energy of a batch of masks, as tables.

    Attributes:
        unary: float32, (B, L, R, C): cost of each label in each block; label k is the weight k / (L - 1).
        down: float32, (B, R - 1, C), not negative: cost per squared difference of weights between vertical neighbours.
        right: float32, (B, R, C - 1), not negative: the same between horizontal neighbours.
    """

    unary: Tensor
    down: Tensor
    right: Tensor


def block_saliency(saliency: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return each block's share of its image's saliency: (B, H, W), not negative -> (B, R, C), sum 1 for each image.

    An image without any saliency gets equal shares.
    """
    pooled = F.adaptive_avg_pool2d(saliency[:, None], grid)[:, 0]
    total = pooled.sum((1, 2), keepdim=True)
    return torch.where(total > 0, pooled / total, 1.0 / (grid[0] * grid[1]))


def label_prior(lam: float, n_labels: int) -> Tensor:
    """Return -log of the binomial probability of each label's weight, which has mean lam: float32, (L,)."""
    top = n_labels - 1
    costs = [-log(comb(top, k) * lam**k * (1.0 - lam) ** (top - k) + 1e-8) for k in range(n_labels)]
    return torch.tensor(costs, dtype=torch.float32, device="cpu")


def mask_problem(
    x: Tensor,
    shares: Tensor,
    partner: Tensor,
    *,
    lam: float,
    n_labels: int = 3,
    beta: float = 1.2,
    gamma: float = 0.5,
    eta: float = 0.2,
    cell: int = 4,
) -> MaskProblem:
    """Return the energy of all masks of a batch.

    Args:
        x: (B, D, H, W), images, each channel within [0, 1], so that no edge has a negative weight.
        shares: float32, (B, R, C), from ``block_saliency``; R and C are at most H and W.
        partner: int64, (B,).
        lam: mean of the prior, the wanted weight of the own image, in [0, 1].
        n_labels: number of weights a block can have, at least 2.
        beta: weight of the smoothness of labels, at least 0.
        gamma: weight of the smoothness of data, relative to beta, in [0, 1].
        eta: weight of the prior, at least 0.
        cell: how wide a strip of pixels on either side of an edge the smoothness of data compares, cut to a block.
    """
    rows, columns = shares.shape[1:]
    blocks = rows * columns
    edge = beta / (16.0 * sqrt(blocks))
    weights = torch.linspace(0.0, 1.0, n_labels, dtype=torch.float32, device=x.device)[:, None, None]
    hidden = shares[:, None] + weights * (shares[partner] - shares)[:, None]
    unary = hidden + (eta / blocks) * label_prior(lam, n_labels).to(x.device)[:, None, None]
    slope, pairs = torch.zeros_like(shares), []
    for dim in (1, 2):
        both_own, own_first, own_last = _seams(x, partner, (rows, columns), dim=dim, cell=cell)
        both_other = both_own[partner]
        # phi(z, z') is one of these four where both weights are 0 or 1. A linear term each, a constant and the
        # squared difference of the weights give the same four values.
        pairs.append(edge + edge * gamma * (own_first + own_last - both_own - both_other) / 2)
        even = edge * gamma * (both_own - both_other) / 2
        odd = edge * gamma * (own_first - own_last) / 2
        size = shares.shape[dim]
        slope.narrow(dim, 0, size - 1).add_(even + odd)
        slope.narrow(dim, 1, size - 1).add_(even - odd)
        unary = unary + (edge * gamma / blocks) * both_other.sum((1, 2))[:, None, None, None]
    return MaskProblem(unary + weights * slope[:, None], pairs[0], pairs[1])


def _seams(x: Tensor, partner: Tensor, grid: tuple[int, int], *, dim: int, cell: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return how far colours jump across each edge along ``dim`` of the grid: three of (B, R - 1, C) or (B, R, C - 1).

    The first stays in the sample's image, the second goes from there to the partner's, the third the other way.
    """
    cells = max(1, min(x.shape[2] // grid[0], x.shape[3] // grid[1]) // cell)
    pooled = F.adaptive_avg_pool2d(x, (grid[0] * cells, grid[1] * cells))
    if dim == 2:
        pooled = pooled.transpose(2, 3)
    before, after = pooled[:, :, cells - 1 : -1 : cells], pooled[:, :, cells::cells]

    def jump(first: Tensor, last: Tensor) -> Tensor:
        seam = (first - last).abs().mean(1).unflatten(2, (-1, cells)).mean(3)
        return seam if dim == 1 else seam.transpose(1, 2)

    return jump(before, after), jump(before, after[partner]), jump(before[partner], after)


def mask_energy(problem: MaskProblem, labels: Tensor) -> Tensor:
    """Return the energy of each mask: labels, int64 (B, R, C) -> (B,)."""
    z = labels.float() / (problem.unary.shape[1] - 1)
    unary = problem.unary.gather(1, labels[:, None]).sum((1, 2, 3))
    down = problem.down * z.diff(dim=1).square()
    return unary + down.sum((1, 2)) + (problem.right * z.diff(dim=2).square()).sum((1, 2))


def solve_mask(problem: MaskProblem, *, steps: int = 16) -> Tensor:
    """Return a mask of nearly the lowest energy for every sample, all at once.

    Annealed mean field: as the pairwise cost is quadratic in the weights, a block sees its neighbours through their
    mean weights alone. It starts once from each label; while the temperature falls, the two colours of a checkerboard
    take turns, then single blocks are improved while the rest stands. The best of these masks and of those with one
    label everywhere is taken. On average its energy equals a graph cut's (alpha-beta swap).

    Args:
        problem: the energies.
        steps: number of temperatures.

    Returns:
        int64, (B, R, C): a label for each block.
    """
    batch, n_labels, rows, columns = problem.unary.shape
    z = torch.linspace(0.0, 1.0, n_labels, dtype=torch.float32, device=problem.unary.device)
    cost, scale = _cost_among_neighbours(problem, z[:, None, None])
    place = torch.arange(rows + columns, device=z.device)
    colour = (place[:rows, None] + place[:columns]) % 2 == 0
    uniform = torch.arange(n_labels, device=z.device)[:, None, None, None].expand(-1, batch, rows, columns)
    mean = z[uniform]
    for step in range(steps):
        temperature = scale * 0.15 * (0.02 / 0.15) ** (step / max(1, steps - 1))
        for turn in (colour, ~colour):
            share = torch.softmax(cost(mean) / -temperature, dim=2)
            mean = torch.where(turn, (share * z[:, None, None]).sum(2), mean)
    labels = (mean * (n_labels - 1)).round().long()
    for turn in (colour, ~colour) * 2:
        labels = torch.where(turn, cost(z[labels]).argmin(2), labels)
    candidates = torch.cat([labels, uniform])
    best = torch.stack([mask_energy(problem, labels) for labels in candidates]).argmin(0)
    return candidates[best, torch.arange(batch, device=z.device)]


def _cost_among_neighbours(problem: MaskProblem, z: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return the cost of every label, (S, B, R, C) mean weights -> (S, B, L, R, C), and its scale, (B, 1, 1, 1)."""
    above, below = F.pad(problem.down, (0, 0, 1, 0)), F.pad(problem.down, (0, 0, 0, 1))
    edges = torch.stack([above, below, F.pad(problem.right, (1, 0)), F.pad(problem.right, (0, 1))])
    degree = edges.sum(0)
    alone = problem.unary + z.square() * degree[:, None]

    def cost(mean: Tensor) -> Tensor:
        wide = F.pad(mean, (1, 1, 1, 1))
        above, below = wide[..., :-2, 1:-1], wide[..., 2:, 1:-1]
        around = torch.stack([above, below, wide[..., 1:-1, :-2], wide[..., 1:-1, 2:]], dim=1)
        return alone - 2.0 * z * (edges * around).sum(1)[:, :, None]

    return cost, degree.mean((1, 2)).clamp(min=1e-12)[:, None, None, None]


def transport_cost(shares: Tensor, *, t_eps: float) -> Tensor:
    """Return what it costs to show block i at place j: ``t_eps * distance - share of i``, (B, R * C, R * C).

    The distance is squared, in units of the longer side of the grid.
    """
    rows, columns = shares.shape[1:]
    place = torch.arange(rows * columns, device=shares.device)
    row, column = place // columns, place % columns
    distance = (row[:, None] - row).square() + (column[:, None] - column).square()
    return (t_eps / max(1, rows - 1, columns - 1) ** 2) * distance - shares.flatten(1)[:, :, None]


def transport_plan(shares: Tensor, shown: Tensor, *, t_eps: float = 0.8, rounds: int = 8) -> Tensor:
    """Return which block of an image goes to each place that its mask shows.

    The paper's masked approximation of the optimal assignment: in every round each block asks for the place that costs
    least, a place keeps the block that is cheapest there, and who loses a place never asks for it again. A block
    stays unless it gains, so no place that is shown costs more than with the block that was there. What is at hidden
    places is not seen: they keep their own.

    Args:
        shares: float32, (B, R, C), each block's share of the saliency.
        shown: bool, (B, R, C), True where the image has weight.
        t_eps: price of distance, at least 0.
        rounds: number of rounds; blocks that still have no place then are not shown.

    Returns:
        int64, (B, R, C): the number of the block that each place gets; no two shown places get the same.
    """
    batch, blocks = len(shares), shares[0].numel()
    cost = transport_cost(shares, t_eps=t_eps).masked_fill_(~shown.flatten(1)[:, None], 0.0)
    home = torch.arange(blocks, device=shares.device).expand(batch, blocks)
    for _ in range(rounds):
        price, place = cost.min(2)
        lowest = torch.zeros_like(price).scatter_reduce_(1, place, price, "amin")
        lost = price > lowest.gather(1, place)
        cost.scatter_(2, place[:, :, None], price.masked_fill(lost, 0.0)[:, :, None])
    winner = (price < 0.0) & ~lost
    # A column more takes what has no place.
    plan = F.pad(home, (0, 1)).scatter_(1, place.masked_fill(~winner, blocks), home)
    return plan[:, :blocks].unflatten(1, shares.shape[1:])
