"""Mixing features: against the oracle's loop, by hand, and what must hold for every input."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.expectations import expected_features
from timm_patchup.core.functional import mix_features

from .functional_cases import BRANCHES, DTYPES, LAMS, SEEDS, SIDES, in_branch, make_batch


@pytest.mark.parametrize("branch", BRANCHES)
@given(
    seed=SEEDS,
    batch=st.integers(1, 5),
    channels=st.integers(1, 3),
    height=SIDES,
    width=SIDES,
    each=st.booleans(),
    lam=LAMS,
    as_tensor=st.booleans(),
)
def test_mix_features_is_the_papers(
    branch: str,
    seed: int,
    batch: int,
    channels: int,
    height: int,
    width: int,
    each: bool,
    lam: float | None,
    as_tensor: bool,
) -> None:
    x, changed, partner = make_batch(seed, (batch, channels, height, width), masks=batch if each else 1)
    before = x.clone(), changed.clone(), partner.clone()
    given_lam = torch.tensor(lam) if as_tensor and lam is not None else lam
    with in_branch(branch):
        mixed = mix_features(x, changed, partner, lam=given_lam)
    torch.testing.assert_close(mixed, expected_features(x, changed, partner, lam), rtol=1e-12, atol=1e-12)
    for now, then in zip((x, changed, partner), before):
        assert torch.equal(now, then)


@pytest.mark.parametrize("branch", BRANCHES)
def test_mix_features_by_hand(branch: str) -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [100.0, 200.0, 300.0]]).reshape(3, 1, 1, 3)
    partner = torch.tensor([1, 2, 0])
    one = torch.tensor([True, False, True]).reshape(1, 1, 1, 3)
    each = torch.tensor([[True, False, False], [False, True, False], [False, False, False]]).reshape(3, 1, 1, 3)
    with in_branch(branch):
        hard = mix_features(x, one, partner).flatten(1)
        soft = mix_features(x, one, partner, lam=0.75).flatten(1)
        hard_each = mix_features(x, each, partner).flatten(1)
        soft_each = mix_features(x, each, partner, lam=0.5).flatten(1)
    assert hard.tolist() == [[10, 2, 30], [100, 20, 300], [1, 200, 3]]
    # 0.75 * 1 + 0.25 * 10 = 3.25, 0.75 * 3 + 0.25 * 30 = 9.75, and so on.
    assert soft.tolist() == [[3.25, 2, 9.75], [32.5, 20, 97.5], [75.25, 200, 225.75]]
    assert hard_each.tolist() == [[10, 2, 3], [10, 200, 30], [100, 200, 300]]
    assert soft_each.tolist() == [[5.5, 2, 3], [10, 110, 30], [100, 200, 300]]


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("lam", [None, 0.25])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mix_features_keeps_dtype_and_memory_format(
    dtype: torch.dtype, channels_last: bool, each: bool, lam: float | None, branch: str
) -> None:
    x, changed, partner = make_batch(3, (3, 4, 5, 6), masks=3 if each else 1)
    x = x.to(dtype)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    leaf = x.clone().requires_grad_()
    with in_branch(branch):
        mixed = mix_features(leaf, changed, partner, lam=lam)
        (grad,) = torch.autograd.grad(mixed, leaf, torch.ones_like(mixed))
    for tensor in (mixed, grad):
        assert tensor.dtype is dtype
        assert tensor.shape == x.shape
        assert tensor.stride() == x.stride()
    own, other = x.double(), x[partner].double()
    assert torch.equal(mixed.double()[~changed.expand_as(x)], own[~changed.expand_as(x)])
    if lam is None:
        assert torch.equal(mixed.double(), torch.where(changed, other, own))
    else:
        margin = torch.finfo(dtype).eps * torch.maximum(own.abs(), other.abs())
        assert (mixed.double() >= torch.minimum(own, other) - margin).all()
        assert (mixed.double() <= torch.maximum(own, other) + margin).all()
        torch.testing.assert_close(
            mixed.double(), expected_features(x, changed, partner, lam), rtol=0, atol=8 * torch.finfo(dtype).eps
        )


@pytest.mark.parametrize("branch", BRANCHES)
@given(seed=SEEDS, batch=st.integers(1, 5), height=SIDES, width=SIDES, each=st.booleans())
def test_hard_is_x_or_its_partner_everywhere(
    branch: str, seed: int, batch: int, height: int, width: int, each: bool
) -> None:
    x, changed, partner = make_batch(seed, (batch, 2, height, width), masks=batch if each else 1)
    with in_branch(branch):
        mixed = mix_features(x, changed, partner)
    changed = changed.expand_as(x)
    assert torch.equal(mixed[changed], x[partner][changed])
    assert torch.equal(mixed[~changed], x[~changed])


@pytest.mark.parametrize("extreme", [float("inf"), float("nan"), 3e38])
def test_hard_is_x_or_its_partner_where_values_are_extreme(extreme: float) -> None:
    """On accelerators and in compiled models; the lerp of the CPU promises it where differences are finite."""
    x = torch.tensor([[extreme, 1.0, extreme, 2.0], [-3e38, 3.0, 4.0, 5.0]]).reshape(2, 1, 1, 4)
    changed = torch.tensor([True, True, False, False]).reshape(1, 1, 1, 4)
    partner = torch.tensor([1, 0])
    with in_branch("where"):
        mixed = mix_features(x, changed, partner)
    assert torch.equal(mixed.nan_to_num(nan=7.0), torch.where(changed, x[partner], x).nan_to_num(nan=7.0))


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_changes_nothing(dtype: torch.dtype, branch: str) -> None:
    x, changed, partner = make_batch(5, (5, 3, 4, 6))
    x = x.to(dtype)
    with in_branch(branch):
        for same in (
            mix_features(x, changed, torch.arange(5)),
            mix_features(x, torch.zeros_like(changed), partner),
            mix_features(x, torch.zeros_like(changed), partner, lam=0.3),
            mix_features(x, changed, partner, lam=1.0),
            mix_features(x, changed, partner, lam=torch.tensor(1.0)),
        ):
            assert torch.equal(same, x)
        assert not torch.equal(mix_features(x, changed, partner), x)


def test_lam_of_zero_is_a_swap() -> None:
    x, changed, partner = make_batch(6, (4, 2, 3, 3))
    assert torch.equal(mix_features(x, changed, partner, lam=0.0), mix_features(x, changed, partner))
    assert torch.equal(mix_features(x, changed, partner, lam=torch.tensor(0.0)), mix_features(x, changed, partner))
