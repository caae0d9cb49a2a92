"""What the operation costs, with its mask drawing, forward and backward, in units of one copy of the map.

``draw`` is the draw alone; ``lerp`` is the bound: every sample mixed with its neighbour in one call of torch, there and
back, without a draw, a gather and autograd. All cases run in memory that the process already has: the pages of a fresh
block cost more than a copy into it.
"""

import argparse
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from timm_patchup.core.functional import mix_features

from ..operations import SHAPES, draw, lerp_neighbours, manifold_mixup, naive, patchup
from ..timing import Part, Row, medians, warm_memory


def rows(flags: argparse.Namespace) -> Iterable[Row]:
    """The operation with its mask drawing, forward and backward, in units of one copy."""
    generator = torch.Generator().manual_seed(0)
    compiled = torch.compile(mix_features, dynamic=False)
    for shape in SHAPES:
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
            grad = torch.randn(shape).contiguous(memory_format=layout)

            def both_ways(
                operation: Callable[[Tensor], Tensor], x: Tensor = x, grad: Tensor = grad
            ) -> Callable[[], None]:
                def run() -> None:
                    x.grad = None
                    operation(x).backward(grad)

                return run

            cases: dict[str, Callable[[], object]] = {
                "copy": both_ways(lambda x: x * 1.0),
                "draw": partial(draw, x, generator),
                "lerp": partial(lerp_neighbours, (x.detach(), grad), draw(x, generator)[0]),
                "ManifoldMixup": both_ways(manifold_mixup),
            }
            for mode in ("hard", "soft"):
                cases[f"{mode} naive"] = both_ways(lambda x, mode=mode: naive(x, mode))
                cases[f"{mode} PatchUp"] = both_ways(lambda x, mode=mode: patchup(x, mode, generator, mix_features))
                cases[f"{mode} compiled"] = both_ways(lambda x, mode=mode: patchup(x, mode, generator, compiled))
            with warm_memory():
                seconds = medians(cases, flags.rounds)
            row: Row = {"shape": "x".join(map(str, shape)), "layout": str(layout).removeprefix("torch.")}
            yield row | {name: round(value / seconds["copy"], 2) for name, value in seconds.items()}


PART = Part("op", "The operation, forward and backward, in units of one copy", rows)
