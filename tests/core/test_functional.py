"""Tests of the maths in functional.py: against the loops of oracle.py, against cases worked by hand, and properties."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
from timm_patchup.functional import (
    grow_blocks,
    kept_fraction,
    mix_features,
    mix_targets,
    patchup_loss,
    rectangle_mask,
    seed_rate,
    smooth_target,
    soft_target,
)

SIDES = st.integers(1, 9)
SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 2**31 - 1)
# Weights that float32 holds exactly, so that a tensor of lam in single precision is not a difference.
LAMS = st.one_of(st.none(), st.integers(0, 64).map(lambda n: n / 64))
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
BRANCHES = ["lerp", "where"]


def in_branch(branch: str) -> AbstractContextManager[object]:
    """Take one of the two branches of the blend: the lerp of the CPU, or the one of accelerators and torch.compile."""
    return mock.patch("torch.compiler.is_compiling", return_value=True) if branch == "where" else nullcontext()


def make_batch(
    seed: int, shape: tuple[int, int, int, int], *, masks: int = 1, rate: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    """Features in float64, a mask and a partner, all from one seed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    changed = torch.rand(masks, *shape[1:], generator=generator) < rate
    return x, changed, torch.randperm(shape[0], generator=generator)


def expected_mix(x: Tensor, changed: Tensor, partner: Tensor, lam: float | None) -> Tensor:
    holes = changed.expand(-1, *x.shape[1:]).flatten(1).tolist()
    rows = oracle.operation(x.double().flatten(1).tolist(), partner.tolist(), holes, lam)
    return torch.tensor(rows, dtype=torch.float64).reshape(x.shape)


def plain_mix(x: Tensor, changed: Tensor, partner: Tensor, lam: float | None) -> Tensor:
    """The operation as torch differentiates it by itself."""
    other = x[partner] if lam is None else lam * x + (1 - lam) * x[partner]
    return torch.where(changed, other, x)


# The binary mask


@given(gamma=st.floats(0, 1), block_size=SIZES, height=SIDES, width=SIDES)
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


@given(height=SIDES, width=SIDES, lam=st.floats(0, 1), where=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)))
def test_rectangle_is_the_oracles(height: int, width: int, lam: float, where: tuple[float, float]) -> None:
    center = int(where[0] * height), int(where[1] * width)
    mask = rectangle_mask(height, width, lam=lam, center=center)
    assert mask.shape == (1, 1, height, width)
    assert mask.dtype is torch.bool
    assert mask[0, 0].tolist() == oracle.cutmix_rectangle(height, width, lam, *center)


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    lam=st.floats(0, 1),
    where=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
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


# The operation


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
    torch.testing.assert_close(mixed, expected_mix(x, changed, partner, lam), rtol=1e-12, atol=1e-12)
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
            mixed.double(), expected_mix(x, changed, partner, lam), rtol=0, atol=8 * torch.finfo(dtype).eps
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


# The gradient


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("lam", [None, 0.25])
@pytest.mark.parametrize("masks", [1, 3])
def test_gradients_are_right_in_float64(masks: int, lam: float | None, branch: str) -> None:
    x, changed, partner = make_batch(7, (3, 2, 2, 3), masks=masks)
    leaf = x.requires_grad_()

    def operation(features: Tensor) -> Tensor:
        return mix_features(features, changed, partner, lam=lam)

    with in_branch(branch):
        assert torch.autograd.gradcheck(operation, (leaf,))
        assert torch.autograd.gradgradcheck(operation, (leaf,))


@pytest.mark.parametrize("branch", BRANCHES)
@given(seed=SEEDS, batch=st.integers(1, 5), height=SIDES, width=SIDES, each=st.booleans(), lam=LAMS)
def test_gradient_is_that_of_plain_autograd(
    branch: str, seed: int, batch: int, height: int, width: int, each: bool, lam: float | None
) -> None:
    x, changed, partner = make_batch(seed, (batch, 2, height, width), masks=batch if each else 1)
    leaf, upstream = x.requires_grad_(), torch.randn_like(x)
    with in_branch(branch):
        (ours,) = torch.autograd.grad(mix_features(leaf, changed, partner, lam=lam), leaf, upstream)
    (plain,) = torch.autograd.grad(plain_mix(leaf, changed, partner, lam), leaf, upstream)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


def test_gradient_by_hand() -> None:
    x = torch.zeros(3, 1, 1, 2, requires_grad=True)
    upstream = torch.tensor([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]]).reshape(3, 1, 1, 2)
    changed = torch.tensor([True, False]).reshape(1, 1, 1, 2)
    # Sample 0 takes from 1, 1 from 2 and 2 from 0: so what sample 0 gives is what sample 2 sends back.
    mixed = mix_features(x, changed, torch.tensor([1, 2, 0]))
    (grad,) = torch.autograd.grad(mixed, x, upstream)
    assert grad.flatten(1).tolist() == [[100, 2], [1, 20], [10, 200]]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("lam", [None, 0.25])
def test_nothing_is_saved_but_the_mask_and_the_indices(lam: float | None, channels_last: bool) -> None:
    x, changed, partner = make_batch(8, (5, 2, 3, 4))
    leaf = x.float().requires_grad_()
    if channels_last:
        leaf = leaf.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        mix_features(leaf, changed, partner, lam=lam)
    kinds = sorted((str(tensor.dtype), tuple(tensor.shape)) for tensor in saved)
    expected = [("torch.bool", (1, 2, 3, 4)), ("torch.int64", (5,)), ("torch.int64", (5,))]
    assert kinds == sorted([*expected, ("torch.float32", ())] if lam else expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("lam", [None, 0.25])
@pytest.mark.parametrize("masks", [1, 3])
def test_compiled_is_the_papers(masks: int, lam: float | None, backend: str) -> None:
    torch._dynamo.reset()
    x, changed, partner = make_batch(9, (3, 2, 3, 4), masks=masks)
    weight = None if lam is None else torch.tensor(lam)
    graphs: list[str] = []

    def remember(graph: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., object]:
        graphs.extend(module.code for module in graph.modules() if isinstance(module, torch.fx.GraphModule))
        return torch._dynamo.lookup_backend(backend)(graph, example)

    @torch.compile(backend=remember, fullgraph=True)
    def operation(features: Tensor, lam: Tensor | None) -> Tensor:
        return mix_features(features, changed, partner, lam=lam)

    leaf, upstream = x.clone().requires_grad_(), torch.randn_like(x)
    mixed = operation(leaf, weight)
    (grad,) = torch.autograd.grad(mixed, leaf, upstream)
    (plain,) = torch.autograd.grad(plain_mix(leaf, changed, partner, lam), leaf, upstream)
    torch.testing.assert_close(mixed.detach(), expected_mix(x, changed, partner, lam), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad, plain, rtol=1e-12, atol=1e-12)
    assert any("torch.where" in code for code in graphs)


# Targets and objective


@given(
    seed=SEEDS,
    batch=st.integers(1, 5),
    classes=st.integers(1, 6),
    each=st.booleans(),
    lam=st.one_of(st.none(), st.floats(0, 1)),
)
def test_mix_targets_is_the_papers(seed: int, batch: int, classes: int, each: bool, lam: float | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = torch.rand(batch, classes, generator=generator, dtype=torch.float64)
    target = target / target.sum(1, keepdim=True)
    partner = torch.randperm(batch, generator=generator)
    kept = torch.rand(batch if each else (), generator=generator, dtype=torch.float64)
    before = target.clone(), kept.clone()
    changed_target, mixed_target = mix_targets(target, partner, kept=kept, lam=lam or 0.0)
    rows, p_u = target.tolist(), kept.expand(batch).tolist()
    soft = lam if lam else None
    for i, j in enumerate(partner.tolist()):
        assert changed_target[i].tolist() == pytest.approx(oracle.target_of_changed(rows[i], rows[j], soft), abs=1e-12)
        expected = oracle.reweighted_target(rows[i], rows[j], p_u[i], soft)
        assert mixed_target[i].tolist() == pytest.approx(expected, abs=1e-12)
    assert (mixed_target >= 0).all()
    assert mixed_target.sum(1).tolist() == pytest.approx([1.0] * batch)
    assert torch.equal(target, before[0])
    assert torch.equal(kept, before[1])


def test_mix_targets_by_hand() -> None:
    target = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    partner = torch.tensor([1, 0])
    changed_target, mixed_target = mix_targets(target, partner, kept=torch.tensor(0.75))
    assert changed_target.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert mixed_target.tolist() == [[0.75, 0.25, 0], [0.25, 0.75, 0]]
    # Soft, lam 0.5: Y is half and half, and W = 0.75 * y + 0.25 * Y = 0.875 and 0.125.
    changed_target, mixed_target = mix_targets(target, partner, kept=torch.tensor(0.75), lam=0.5)
    assert changed_target.tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0]]
    assert mixed_target.tolist() == [[0.875, 0.125, 0], [0.125, 0.875, 0]]
    _, each = mix_targets(target, partner, kept=torch.tensor([1.0, 0.25]))
    assert each.tolist() == [[1, 0, 0], [0.75, 0.25, 0]]


def squared(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of the softmax, in torch: the oracle's ``squared_error`` over a batch."""
    return (output.softmax(1) - target).square().sum(1).mean()


@given(seed=SEEDS, batch=st.integers(1, 5), lam=st.one_of(st.none(), st.floats(0.01, 1)))
def test_loss_is_the_papers(seed: int, batch: int, lam: float | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    output = torch.randn(batch, 4, generator=generator, dtype=torch.float64)
    target = F.one_hot(torch.randint(4, (batch,), generator=generator), 4).double()
    partner = torch.randperm(batch, generator=generator)
    kept = torch.rand((), generator=generator, dtype=torch.float64)
    changed_target, mixed_target = mix_targets(target, partner, kept=kept, lam=lam or 0.0)
    p_u = kept.item()
    firsts, seconds = [], []
    for i, j in enumerate(partner.tolist()):
        logits, y_i, y_j = output[i].tolist(), target[i].tolist(), target[j].tolist()
        of_own = oracle.squared_error(logits, y_i)
        of_changed = oracle.squared_error(logits, oracle.target_of_changed(y_i, y_j, lam))
        firsts.append(oracle.first_term(p_u, of_own, of_changed))
        seconds.append(oracle.squared_error(logits, oracle.reweighted_target(y_i, y_j, p_u, lam)))
    first, second = sum(firsts) / batch, sum(seconds) / batch
    for objective, expected in (("l1", first), ("l2", second), ("paper", first + second)):
        loss = patchup_loss(
            output,
            target=target,
            changed_target=changed_target,
            mixed_target=mixed_target,
            kept=kept,
            criterion=squared,
            objective=objective,  # type: ignore[arg-type]
        )
        assert loss.item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("objective", "expected"), [("l1", 0.5), ("l2", 0.125), ("paper", 0.625)])
def test_loss_by_hand(objective: str, expected: float) -> None:
    # l is the squared distance. The output is y: l(out, y) = 0 and l(out, Y) = 2. With p_u = 0.75 the first term is
    # 0.25 * 2 = 0.5, W = (0.75, 0.25) and the second 2 * 0.25**2 = 0.125.
    loss = patchup_loss(
        torch.tensor([[1.0, 0.0]]),
        target=torch.tensor([[1.0, 0.0]]),
        changed_target=torch.tensor([[0.0, 1.0]]),
        mixed_target=torch.tensor([[0.75, 0.25]]),
        kept=torch.tensor(0.75),
        criterion=lambda output, target: (output - target).square().sum(1).mean(),
        objective=objective,  # type: ignore[arg-type]
    )
    assert loss.item() == pytest.approx(expected)


@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=6), smoothing=st.floats(0, 0.99))
def test_soft_target_is_smoothed_one_hot(labels: list[int], smoothing: float) -> None:
    soft = soft_target(torch.tensor(labels), 6, label_smoothing=smoothing)
    assert soft.dtype is torch.float32
    for row, label in zip(soft.tolist(), labels):
        own = [1.0 if k == label else 0.0 for k in range(6)]
        assert row == pytest.approx(oracle.smoothed(own, smoothing), abs=1e-6)


def test_smooth_target_by_hand() -> None:
    # 0.8 * (1, 0, 0, 0) + 0.2 / 4
    assert smooth_target(torch.tensor([[1.0, 0, 0, 0]]), 0.2)[0].tolist() == pytest.approx([0.85, 0.05, 0.05, 0.05])
    assert soft_target(torch.tensor([[0.5, 0.5]], dtype=torch.bfloat16), 2).dtype is torch.float32
