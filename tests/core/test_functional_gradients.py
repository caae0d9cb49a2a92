"""The gradient of mixing features: right in float64, cheap in memory, the same when compiled."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.support.expectations import expected_features
from timm_patchup.core.functional import erase_features, mix_features
from timm_patchup.core.hooks import indices_for_graph, mask_for_graph

from .functional_cases import BRANCHES, LAMS, SEEDS, SIDES, in_branch, make_batch, plain_mix


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
def test_gradient_matches_plain_autograd(
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
@pytest.mark.parametrize("as_bytes", [False, True])
def test_compiled_is_the_papers(as_bytes: bool, masks: int, lam: float | None, backend: str) -> None:
    torch._dynamo.reset()
    x, changed, partner = make_batch(9, (3, 2, 3, 4), masks=masks)
    weight = None if lam is None else torch.tensor(lam)
    mask = mask_for_graph(changed) if as_bytes else changed
    own_partner, inverse = indices_for_graph(partner)
    graphs: list[str] = []

    def remember(graph: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., object]:
        graphs.extend(module.code for module in graph.modules() if isinstance(module, torch.fx.GraphModule))
        return torch._dynamo.lookup_backend(backend)(graph, example)

    @torch.compile(backend=remember, fullgraph=True)
    def operation(features: Tensor, lam: Tensor | None) -> Tensor:
        return mix_features(features, mask, own_partner, lam=lam, inverse=inverse)

    leaf, upstream = x.clone().requires_grad_(), torch.randn_like(x)
    mixed = operation(leaf, weight)
    (grad,) = torch.autograd.grad(mixed, leaf, upstream)
    (plain,) = torch.autograd.grad(plain_mix(leaf, changed, partner, lam), leaf, upstream)
    torch.testing.assert_close(mixed.detach(), expected_features(x, changed, partner, lam), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad, plain, rtol=1e-12, atol=1e-12)
    assert any("torch.where" in code for code in graphs)


@pytest.mark.parametrize("branch", ["lerp", "rows"])
@pytest.mark.parametrize("lam", [None, 0.25])
@pytest.mark.parametrize("masks", [1, 3])
def test_transforms_of_torch_func_agree_with_plain_autograd(masks: int, lam: float | None, branch: str) -> None:
    x, changed, partner = make_batch(10, (3, 2, 3, 4), masks=masks)
    direction = torch.randn_like(x)
    several = torch.randn(5, *x.shape, dtype=x.dtype)

    def ours(features: Tensor) -> Tensor:
        return mix_features(features, changed, partner, lam=lam)

    def plain(features: Tensor) -> Tensor:
        return plain_mix(features, changed, partner, lam)

    def energy(mix: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
        return mix(features).pow(3).sum()

    def close(first: Tensor, second: Tensor) -> None:
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)

    with in_branch(branch):
        close(torch.func.grad(partial(energy, ours))(x), torch.func.grad(partial(energy, plain))(x))
        for one, other in zip(torch.func.jvp(ours, (x,), (direction,)), torch.func.jvp(plain, (x,), (direction,))):
            close(one, other)
        for dim in (0, 2):
            moved = several.movedim(0, dim)
            close(torch.func.vmap(ours, in_dims=dim)(moved), torch.stack([plain(one) for one in several]))
        close(torch.func.jacrev(ours)(x), torch.func.jacrev(plain)(x))
        close(torch.func.jacfwd(ours)(x), torch.func.jacfwd(plain)(x))
        close(torch.func.hessian(partial(energy, ours))(x), torch.func.hessian(partial(energy, plain))(x))


def test_vmap_takes_a_mask_for_each_but_one_partner_for_all() -> None:
    x, changed, partner = make_batch(11, (3, 2, 3, 4), masks=1)
    masks = torch.stack([changed, ~changed, torch.zeros_like(changed)])
    mixed = torch.func.vmap(mix_features, in_dims=(None, 0, None))(x, masks, partner)
    for one, mask in zip(mixed, masks):
        assert torch.equal(one, plain_mix(x, mask, partner, None))
    with pytest.raises(NotImplementedError, match="map over x and changed; partner and lam are for all"):
        torch.func.vmap(mix_features, in_dims=(None, None, 0))(x, changed, torch.stack([partner, partner]))


@pytest.mark.parametrize("lam", [None, 0.25])
@pytest.mark.parametrize("masks", [1, 3])
def test_a_mask_of_bytes_is_the_same_mask(masks: int, lam: float | None) -> None:
    x, changed, partner = make_batch(12, (3, 2, 3, 4), masks=masks)
    scale = torch.tensor(1.5)
    mixed = mix_features(x, mask_for_graph(changed), partner, lam=lam)
    assert torch.equal(mixed, mix_features(x, changed, partner, lam=lam))
    erased = erase_features(x, mask_for_graph(changed), scale=scale)
    assert torch.equal(erased, erase_features(x, changed, scale=scale))
    compiled = torch.compile(erase_features, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, mask_for_graph(changed), scale=scale), erased)
    assert mask_for_graph(changed).data_ptr() == changed.data_ptr(), "no copy"
