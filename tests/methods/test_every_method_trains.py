"""What a training loop relies on, for every method: odd batches, compile, checkpointing, dtypes, layouts, gradients."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from tests.conftest import NUM_CLASSES
from tests.support.expectations import record
from timm_patchup import Draw

from .every_method import (
    BY_SALIENCY,
    CASES,
    HIDDEN,
    INSIDE,
    WITH_SITES,
    batch,
    bytes_saved,
    last,
    mixer_of,
    step,
    tiny_net,
)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("name", CASES)
def test_small_and_odd_batches_train(name: str, size: int) -> None:
    model = tiny_net()
    mix = mixer_of(name, model)
    for seed in range(6):
        model.zero_grad()
        _, target, output = step(mix, *batch(size, seed))
        mix.loss(output, target).backward()
        assert target.shape == (size, NUM_CLASSES)
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "checkpointing"), [(name, False) for name in CASES] + [(name, True) for name in INSIDE]
)
def test_compiled_step_has_one_graph_per_site_and_eager_gradients(name: str, checkpointing: bool) -> None:
    torch._dynamo.reset()
    model = tiny_net()
    # Older releases of torch update norm statistics again when a compiled model recomputes; saliency depends on them.
    model.norm.momentum = 0.0
    twin = copy.deepcopy(model)
    twin.checkpointing = checkpointing
    mix, twin_mix = mixer_of(name, model, seed=3), mixer_of(name, twin, seed=3)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(twin, backend=counter, fullgraph=True)
    seen: set[str | None] = set()
    graphs = set()
    every = {None, *HIDDEN} if name in INSIDE else {None}
    for seed in range(200):  # a site is missed with probability 1e-35
        if seed >= 12 and seen == every:
            break
        x, y = batch(seed=seed)
        for network, mixer, run in ((model, mix, model), (twin, twin_mix, compiled)):
            network.zero_grad()
            mixed, target = mixer(x, y)
            mixer.loss(run(mixed), target).backward()
        seen.add(last(mix).site if last(mix).site in HIDDEN else None)
        kind = type(last(mix).change), isinstance(last(mix).lam, Tensor)
        graphs.add((last(mix).site, kind) if last(mix).site in HIDDEN else None)
        assert counter.frame_count == len(graphs), "one per site; several methods may mix and erase there"
        for (at, p), q in zip(model.named_parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5, msg=lambda text, at=at: f"{at}: {text}")
    assert seen == every


@pytest.mark.parametrize("name", CASES)
def test_gradient_checkpointing_sees_the_same_draw(name: str) -> None:
    model = tiny_net()
    model.norm.momentum = 0.0
    mix = mixer_of(name, model)
    for seed in range(6):
        x, y = batch(seed=seed)
        found = []
        draw = None
        for model.checkpointing in (False, True):
            model.zero_grad()
            _, target, output = step(mix, x, y, draw=draw)
            draw = last(mix)
            mix.loss(output, target).backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for plain, recomputed in zip(*found, strict=True):
            torch.testing.assert_close(plain, recomputed)


@pytest.mark.parametrize("name", CASES)
def test_bfloat16_is_kept(name: str) -> None:
    model = tiny_net()
    mix = mixer_of(name, model)
    seen: list[Tensor] = []
    record(model.first, seen)
    record(model.second, seen)
    for seed in range(6):
        x, y = batch(seed=seed)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed, target, output = step(mix, x, y)
            loss = mix.loss(output, target)
        loss.backward()
        assert mixed.dtype is torch.float32
        assert all(features.dtype is torch.bfloat16 for features in seen[-2:])
        assert target.dtype is loss.dtype is torch.float32
        assert torch.isfinite(loss)
    assert mix(x.bfloat16(), y)[0].dtype is torch.bfloat16


@pytest.mark.parametrize("name", CASES)
def test_channels_last_is_kept_and_changes_nothing(name: str) -> None:
    model = tiny_net()
    twin = copy.deepcopy(model).to(memory_format=torch.channels_last)
    mix, twin_mix = mixer_of(name, model), mixer_of(name, twin)
    seen: list[bool] = []
    for module in (twin.first, twin.second):
        module.register_forward_hook(
            lambda module, args, output: seen.append(output.is_contiguous(memory_format=torch.channels_last))
        )
    for seed in range(6):
        x, y = batch(seed=seed)
        mixed, target, output = step(mix, x, y)
        mix.loss(output, target).backward()
        other, target, output = step(twin_mix, x.contiguous(memory_format=torch.channels_last), y)
        twin_mix.loss(output, target).backward()
        assert other.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(other, mixed)
    assert seen
    assert all(seen)
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "site"),
    # Saliency needs a classifier.
    [(name, "input") for name in CASES if name not in BY_SALIENCY] + [(name, "0") for name in WITH_SITES],
)
def test_gradient_of_the_operation_in_float64(name: str, site: str) -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity()).train()
    mix = mixer_of(name, model, sites=[site], length=2, block_size=2)
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    y = torch.tensor([1, 2, 3])
    for _ in range(3):
        step(mix, x, y)
        draw = last(mix)
        assert draw.site == (None if name == "none" else site)

        def altered(x: Tensor, draw: Draw = draw) -> Tensor:
            return step(mix, x, y, draw=draw)[2]

        assert torch.autograd.gradcheck(altered, (x.clone().requires_grad_(),))


@pytest.mark.parametrize("name", WITH_SITES)
def test_backward_keeps_a_mask_and_no_activation(name: str) -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity()).train()
    mix = mixer_of(name, model, sites=["0"])
    x = torch.randn(32, 16, 12, 12, requires_grad=True)
    mixed, _ = mix(x, torch.zeros(32, dtype=torch.long))
    # A mask per sample has a byte per feature of four bytes.
    most = 0.26 if name in ("soft_patchup_per_sample", "hard_patchup_per_sample") else 0.08
    assert 0 < bytes_saved(lambda: model(mixed)) < most * x.untyped_storage().nbytes()
