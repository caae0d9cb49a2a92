"""The binary mask: rates, blocks, rectangles and the share kept, by the paper, by timm and by hand."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from timm.data.mixup import rand_bbox
from timm.layers import drop
from torch import Tensor

from tests.support import oracle
from timm_patchup.core.functional import grow_blocks, kept_fraction, rectangle_mask, seed_rate

from .functional_cases import SEEDS, SIDES, SIZES, make_batch


@given(gamma=st.floats(0, 1, allow_subnormal=False), block_size=SIZES, height=SIDES, width=SIDES)
def test_seed_rate_is_the_papers(gamma: float, block_size: int, height: int, width: int) -> None:
    rate = seed_rate(gamma, block_size, height, width)
    assert rate == pytest.approx(min(1.0, oracle.gamma_adj(gamma, block_size, height, width)), rel=1e-12)
    assert 0.0 <= rate <= gamma * (1 + 1e-12)


def test_seed_rate_by_hand() -> None:
    assert seed_rate(0.5, 2, 4, 6) == pytest.approx(0.2)  # 0.5 * 24 / (4 * (3 * 5))
    assert seed_rate(0.5, 7, 32, 32) == pytest.approx(512 / 33124)  # 0.5 * 1024 / (49 * 26**2)
    assert seed_rate(0.75, 1, 5, 5) == pytest.approx(0.75)
    assert seed_rate(0.25, 7, 3, 5) == pytest.approx(0.25)  # the block is the map: 15 / (15 * 1)
    assert seed_rate(0.0, 7, 32, 32) == 0.0


@given(seed=SEEDS, height=SIDES, width=SIDES, block_size=SIZES, rate=st.sampled_from([0.0, 0.05, 0.3, 1.0]))
def test_grow_blocks_is_the_papers(seed: int, height: int, width: int, block_size: int, rate: float) -> None:
    _, seeds, _ = make_batch(seed, (1, 2, height, width), masks=2, rate=rate)
    before = seeds.clone()
    grown = grow_blocks(seeds, block_size)
    expected = [[oracle.grow(seeds[n, c].tolist(), block_size) for c in range(2)] for n in range(2)]
    assert grown.tolist() == expected
    assert grown.dtype is torch.bool
    assert torch.equal(seeds, before)


def grown_from(height: int, width: int, block_size: int, row: int, column: int) -> list[list[int]]:
    seeds = torch.zeros(1, 1, height, width, dtype=torch.bool)
    seeds[0, 0, row, column] = True
    return grow_blocks(seeds, block_size)[0, 0].int().tolist()


def test_grow_blocks_by_hand() -> None:
    assert grown_from(4, 5, 3, 1, 3) == [[0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]
    assert grown_from(3, 4, 3, 0, 0) == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    # Even: one further up and left than down and right.
    assert grown_from(4, 4, 2, 2, 2) == [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    # Larger than the map: 2 high (rows -1 and 0), 3 wide (columns -1 to 1).
    assert grown_from(2, 3, 9, 0, 0) == [[1, 1, 0], [0, 0, 0]]


@given(seed=SEEDS, height=SIDES, width=SIDES, block_size=st.sampled_from([1, 3, 5, 7, 9]))
def test_grow_blocks_is_max_pool_for_odd_sizes(seed: int, height: int, width: int, block_size: int) -> None:
    # An odd block that is cut by an even map is even: that case is timm's, below.
    height, width = max(height, block_size), max(width, block_size)
    _, seeds, _ = make_batch(seed, (1, 3, height, width), rate=0.1)
    pooled = F.max_pool2d(seeds.float(), block_size, stride=1, padding=block_size // 2)
    assert torch.equal(grow_blocks(seeds, block_size), pooled.bool())


@given(seed=SEEDS, height=SIDES, width=SIDES, block_size=SIZES)
def test_grow_blocks_is_timms_drop_block(seed: int, height: int, width: int, block_size: int) -> None:
    _, seeds, _ = make_batch(seed, (1, 3, height, width), rate=0.1)
    with mock.patch.object(Tensor, "bernoulli_", lambda empty, rate: empty.copy_(seeds)):
        kept = drop.drop_block_2d(
            torch.ones(1, 3, height, width), block_size=block_size, couple_channels=False, scale_by_keep=False
        )
    assert torch.equal(grow_blocks(seeds, block_size), kept == 0)


@given(
    height=SIDES,
    width=SIDES,
    lam=st.floats(0, 1, allow_subnormal=False),
    where=st.tuples(st.floats(0, 0.999, allow_subnormal=False), st.floats(0, 0.999, allow_subnormal=False)),
)
def test_rectangle_is_the_oracles(height: int, width: int, lam: float, where: tuple[float, float]) -> None:
    center = int(where[0] * height), int(where[1] * width)
    mask = rectangle_mask(height, width, lam=lam, center=center)
    assert mask.shape == (1, 1, height, width)
    assert mask.dtype is torch.bool
    assert mask[0, 0].tolist() == oracle.cutmix_rectangle(height, width, lam, *center)


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    lam=st.floats(0, 1, allow_subnormal=False),
    where=st.tuples(st.floats(0, 0.999, allow_subnormal=False), st.floats(0, 0.999, allow_subnormal=False)),
)
def test_rectangle_is_timms(height: int, width: int, lam: float, where: tuple[float, float]) -> None:
    center = int(where[0] * height), int(where[1] * width)
    with mock.patch("numpy.random.randint", side_effect=center):
        top, bottom, left, right = rand_bbox((2, 3, height, width), lam)
    expected = torch.zeros(1, 1, height, width, dtype=torch.bool)
    expected[:, :, top:bottom, left:right] = True
    assert torch.equal(rectangle_mask(height, width, lam=lam, center=center), expected)


def test_rectangle_by_hand() -> None:
    # sqrt(1 - 0.75) = 0.5, so 4 of 8: rows 1 - 2 = -1 to 2, the first cut off, columns 5 - 2 = 3 to 6.
    mask = rectangle_mask(8, 8, lam=0.75, center=(1, 5))
    assert mask[0, 0].nonzero().tolist() == [[row, column] for row in (0, 1, 2) for column in (3, 4, 5, 6)]
    assert kept_fraction(mask).item() == pytest.approx(52 / 64)
    assert not rectangle_mask(8, 8, lam=1.0, center=(4, 4)).any()
    assert rectangle_mask(8, 6, lam=0.0, center=(4, 3)).all()


def test_rectangle_of_odd_side_by_hand() -> None:
    # Half of 6 is 3: one place before the middle and one after it, rows 2 to 4 and columns 2 to 4.
    mask = rectangle_mask(6, 6, lam=0.75, center=(3, 3))
    assert mask[0, 0].nonzero().tolist() == [[row, column] for row in (2, 3, 4) for column in (2, 3, 4)]


@given(seed=SEEDS, masks=st.integers(1, 5), channels=st.integers(1, 3), height=SIDES, width=SIDES)
def test_kept_fraction_is_the_papers(seed: int, masks: int, channels: int, height: int, width: int) -> None:
    _, changed, _ = make_batch(seed, (masks, channels, height, width), masks=masks)
    kept = kept_fraction(changed)
    expected = [oracle.portion_unchanged(holes) for holes in changed.flatten(1).tolist()]
    assert kept.dtype is torch.float32
    assert kept.shape == (() if masks == 1 else (masks,))
    assert kept.reshape(-1).tolist() == pytest.approx(expected, abs=1e-6)


def test_kept_fraction_by_hand() -> None:
    changed = torch.tensor([[[[1, 0], [0, 0]]], [[[1, 1], [0, 1]]]], dtype=torch.bool)
    assert kept_fraction(changed).tolist() == [0.75, 0.25]
    assert kept_fraction(changed[:1]).tolist() == 0.75


@pytest.mark.parametrize("shape", [(1, 4, 9, 8), (3, 4, 9, 8), (9, 8)])
def test_a_mask_of_blocks_holds_nothing_but_itself(shape: tuple[int, ...]) -> None:
    grown = grow_blocks(torch.rand(shape) < 0.1, 3)
    assert grown.is_contiguous()
    assert grown.untyped_storage().nbytes() == grown.numel()
