"""What the tests of core/functional share: sizes and seeds to try, both branches of the blend, a batch of features."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import Tensor

SIDES = st.integers(1, 9)
SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 2**31 - 1)
# Weights that float32 holds exactly, so that a tensor of lam in single precision is not a difference.
LAMS = st.one_of(st.none(), st.integers(0, 64).map(lambda n: n / 64))
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
BRANCHES = ["lerp", "rows", "where"]


@contextmanager
def in_branch(branch: str) -> Iterator[None]:
    """Take one branch of the blend: all samples at once or one by one on the CPU, or the branch of torch.compile."""
    if branch == "where":
        patched = mock.patch("torch.compiler.is_compiling", return_value=True)
    else:
        smallest = 0 if branch == "rows" else 2**40
        patched = mock.patch("timm_patchup.core.functional._LARGE_SAMPLE", smallest)
    with patched:
        yield


def make_batch(
    seed: int, shape: tuple[int, int, int, int], *, masks: int = 1, rate: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    """Features in float64, a mask and a partner, all from one seed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    changed = torch.rand(masks, *shape[1:], generator=generator) < rate
    return x, changed, torch.randperm(shape[0], generator=generator)


def plain_mix(x: Tensor, changed: Tensor, partner: Tensor, lam: float | None) -> Tensor:
    """The operation as torch differentiates it by itself."""
    other = x[partner] if lam is None else lam * x + (1 - lam) * x[partner]
    return torch.where(changed, other, x)
