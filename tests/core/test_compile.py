"""A compiled model with a mixer: one graph per site, the gradients of the eager model, and no silent skip."""

import copy
from collections.abc import Callable

import pytest
import timm
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from timm_patchup import PatchUp

from .layout_models import KNOWN, LABELS
from .layout_models import make as make_with_layout
from .steps import HIDDEN, SmallNet, assert_same, batches, draw_at, grads, make_model


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_compile_makes_one_graph_per_site_and_one_for_off(mode: str) -> None:
    torch._dynamo.reset()
    model = make_model()
    mix = PatchUp(model, mode=mode, prob=0.8, seed=3)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    seen: set[str | None] = set()
    for x, y in batches(40):
        mixed, target = mix(x, y)
        mix.loss(compiled(mixed), target).backward()
        # A draw at the input is over before the model runs: inside, it is the same as off.
        seen.add(None if mix.draw.site == "input" else mix.draw.site)
        assert counter.frame_count == len(seen)
    assert seen == {*HIDDEN, None}
    model.eval()
    for site in HIDDEN:
        model.train()
        mixed, target = draw_at(mix, site, x, y)
        compiled(mixed)
        model.eval()
        compiled(x)
    assert counter.frame_count == len(seen) + 1, "one more graph for eval, whatever is armed"


TOKENS_AND_TUPLES = {
    "test_vit": {"img_size": 64},
    "pit_ti_224": {"img_size": 64, "depth": (1, 1, 1)},
}


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("name", TOKENS_AND_TUPLES)
def test_tokens_and_several_tensors_make_one_graph_per_site_too(name: str, mode: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10, **TOKENS_AND_TUPLES[name])
    twin = copy.deepcopy(model)
    mix = PatchUp(model, mode=mode, prob=0.8, seed=3, block_size=2)
    twin_mix = PatchUp(twin, mode=mode, prob=0.8, seed=3, block_size=2)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    seen: set[str | None] = set()
    for x, y in batches(40):
        mixed, target = mix(x, y)
        output = compiled(mixed)
        mix.loss(output, target).backward()
        mixed, target = twin_mix(x, y)
        torch.testing.assert_close(output, twin(mixed), rtol=1e-4, atol=1e-5)
        seen.add(None if mix.draw.site == "input" else mix.draw.site)
        assert counter.frame_count == len(seen)
        if seen == {*HIDDEN, None}:
            break
    assert seen == {*HIDDEN, None}


# Two prefix tokens, a grid that the batch states, tokens in another order, NHWC (two of them), tokens without a prefix.
MORE_LAYOUTS = ["deit_tiny_distilled_patch16_224", "naflexvit_base_patch16_gap", "hiera_tiny_224", "test_mambaout"]
MORE_LAYOUTS += ["swin_tiny_patch4_window7_224", "xcit_nano_12_p16_224"]


@pytest.mark.parametrize("name", [name for name in MORE_LAYOUTS if name in KNOWN])
def test_every_layout_makes_one_graph_per_site_and_one_for_off(name: str) -> None:
    torch._dynamo.reset()
    model, x = make_with_layout(name)
    mix = PatchUp(model.train(), prob=0.5, sites=["stage1"], block_size=2)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    seen: set[str | None] = set()
    for _ in range(60):  # one of the two is missed with probability 1e-17
        mixed, target = mix(x, LABELS)
        mix.loss(compiled(mixed), target)
        seen.add(mix.draw.site)
        assert counter.frame_count == len(seen)
        if len(seen) == 2:
            break
    assert seen == {"stage1", None}


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("site", HIDDEN)
def test_compiled_step_equals_eager_step(mode: str, site: str) -> None:
    torch._dynamo.reset()
    model = make_model()
    twin = copy.deepcopy(model)
    mix, twin_mix = (PatchUp(m, mode=mode, prob=1.0, sites=[site], seed=5) for m in (model, twin))
    compiled = torch.compile(twin, backend="aot_eager")
    for x, y in batches(2):
        for network, mixer, run in ((model, mix, model), (twin, twin_mix, compiled)):
            network.zero_grad()
            mixed, target = mixer(x, y)
            mixer.loss(run(mixed), target).backward()
        assert torch.equal(mix.draw.changed, twin_mix.draw.changed)
        assert_same(grads(model), grads(twin), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_inductor_step_equals_eager_step(mode: str) -> None:
    torch._dynamo.reset()
    model = SmallNet()
    twin = copy.deepcopy(model)
    mix, twin_mix = (PatchUp(m, mode=mode, prob=1.0, sites=["conv"], num_classes=10, seed=5) for m in (model, twin))
    compiled = torch.compile(twin)
    for x, y in batches(2):
        for mixer, run in ((mix, model), (twin_mix, compiled)):
            mixed, target = mixer(x, y)
            mixer.loss(run(mixed), target).backward()
        assert_same(grads(model), grads(twin), rtol=1e-4, atol=1e-5)


def test_inputs_of_graphs_are_what_inductor_makes_vectors_of() -> None:
    """See core/hooks.py; that results are the same is tested everywhere else."""
    torch._dynamo.reset()
    model = make_model()
    mix = PatchUp(model, prob=1.0, sites=HIDDEN)
    inputs: list[torch.Tensor] = []

    def remember(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> Callable[..., object]:
        inputs.extend(example)
        return graph.forward

    x, y = next(batches(1))
    mixed, target = draw_at(mix, "stem", x, y)
    mix.loss(torch.compile(model, backend=remember, fullgraph=True)(mixed), target)
    masks = [tensor for tensor in inputs if tuple(tensor.shape) == tuple(mix.draw.changed.shape)]
    indices = [tensor for tensor in inputs if tensor.dtype is torch.int64 and tensor.shape == (len(x),)]
    assert [tensor.dtype for tensor in masks] == [torch.uint8]
    assert [tensor.stride() for tensor in indices] == [(2,), (2,)]


def test_compile_with_gradient_checkpointing_makes_one_whole_graph_per_site() -> None:
    torch._dynamo.reset()
    model = make_model()
    model.set_grad_checkpointing(True)
    mix = PatchUp(model, prob=1.0, sites=HIDDEN, seed=3)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x, y = next(batches(1))
    for site in HIDDEN * 2:
        mixed, target = draw_at(mix, site, x, y)
        mix.loss(compiled(mixed), target).backward()
    assert counter.frame_count == len(HIDDEN)


def test_a_draw_that_a_compiled_model_did_not_apply_raises() -> None:
    torch._dynamo.reset()
    model = SmallNet()
    mix = PatchUp(model, prob=1.0, sites=["conv"], num_classes=10)
    compiled = torch.compile(model, backend="eager")
    x, y = next(batches(1))
    for _ in range(3):
        mixed, target = mix(x, y)
        mix.loss(compiled(mixed), target)
    mixed, target = mix(x, y)
    with pytest.raises(RuntimeError, match="'conv' was never applied"):
        mix.loss(torch.zeros(4, 10), target)
    mixed, target = mix(x, y)
    mix.loss(compiled(mixed), target)
