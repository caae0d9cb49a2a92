"""The transport of Puzzle Mix against its published algorithm, block by block, on grids above 2 x 2.

In every round each block asks for the place that is cheapest for it, each place keeps the block that is cheapest there,
and whoever loses a place pays 1 more for it from then on. There are as many rounds as blocks along a side.
"""

import pytest
import torch
from torch import Tensor

from timm_patchup.methods.puzzle_images import move_pieces
from timm_patchup.methods.puzzle_solver import block_saliency, transport_plan


def published_plan(shares: list[float], shown: list[bool], side: int, t_eps: float) -> dict[int, int]:
    """Return the block that each place gets."""
    blocks = range(side * side)

    def distance(i: int, j: int) -> float:
        return ((i // side - j // side) ** 2 + (i % side - j % side) ** 2) / (side - 1) ** 2

    cost = [[t_eps * distance(i, j) - shares[i] * shown[j] for j in blocks] for i in blocks]
    got: dict[int, int] = {}
    for _ in range(side):
        wish = [min(blocks, key=lambda j, row=cost[i]: row[j]) for i in blocks]  # type: ignore[misc]
        got = {j: min((i for i in blocks if wish[i] == j), key=lambda i, j=j: cost[i][j]) for j in set(wish)}  # type: ignore[misc]
        for i in blocks:
            if got[wish[i]] != i:
                cost[i][wish[i]] += 1.0
    return got


def saliencies(count: int, *, smooth: bool) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    if not smooth:
        return torch.rand(count, 48, 48, generator=generator) ** 8
    coarse = torch.rand(count, 1, 6, 6, generator=generator) ** 4
    return torch.nn.functional.interpolate(coarse, size=(48, 48), mode="bicubic")[:, 0].clamp(0) + 1e-4


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize(("side", "count"), [(3, 30), (4, 30), (8, 12), (16, 2)])
@pytest.mark.parametrize("t_eps", [0.8, 0.1, 0.02])
def test_plan_matches_the_published_algorithm(side: int, count: int, t_eps: float, smooth: bool) -> None:
    shares = block_saliency(saliencies(count, smooth=smooth), (side, side))
    shown = torch.rand(count, side, side, generator=torch.Generator().manual_seed(side)) < 0.6
    plan = transport_plan(shares, shown, t_eps=t_eps, rounds=side).flatten(1)
    default = transport_plan(shares, shown, t_eps=t_eps).flatten(1)
    moved, other = 0, 0
    for sample in range(count):
        expected = published_plan(shares[sample].flatten().tolist(), shown[sample].flatten().tolist(), side, t_eps)
        places = shown[sample].flatten().nonzero().flatten().tolist()
        assert [int(plan[sample, place]) for place in places] == [expected[place] for place in places]
        moved += sum(expected[place] != place for place in places)
        other += sum(int(default[sample, place]) != expected[place] for place in places)
    if t_eps < 0.8 and (side > 3 or t_eps < 0.1):
        assert moved > 0.1 * int(shown.sum()), "there must be something to compare"
    if t_eps == 0.8 or side == 8:  # at the paper's price the eight rounds of the default are enough here
        assert other == 0


def test_pieces_arrive_where_the_plan_puts_them() -> None:
    """Every pixel by hand, with the plan of a 4 x 4 grid that moves something."""
    shares = block_saliency(saliencies(5, smooth=True), (4, 4))
    plan = transport_plan(shares, torch.rand(5, 4, 4) < 0.5, t_eps=0.05)
    assert bool((plan != torch.arange(16).view(4, 4)).any())
    images = torch.rand(5, 3, 16, 16)
    moved = move_pieces(images, plan)
    for sample in range(5):
        for place in range(16):
            block = int(plan[sample, place // 4, place % 4])
            top, left, row, column = 4 * (place // 4), 4 * (place % 4), 4 * (block // 4), 4 * (block % 4)
            expected = images[sample, :, row : row + 4, column : column + 4]
            assert torch.equal(moved[sample, :, top : top + 4, left : left + 4], expected)
