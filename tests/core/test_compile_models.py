"""Several compiled models in one process, several sizes of image, in place: each runs its own draws, all in graphs."""

import copy
import gc
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from timm_patchup import Mixer, PatchUp

from .steps import HIDDEN, SmallNet, assert_same, batches, draw_at, grads, make_model

Run = Callable[[Tensor], Tensor]


LIMIT = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"  # before 2.6


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    limit = getattr(torch._dynamo.config, LIMIT)
    setattr(torch._dynamo.config, LIMIT, 8)
    yield
    setattr(torch._dynamo.config, LIMIT, limit)
    torch._dynamo.reset()


def compiled(model: nn.Module, backend: object, in_place: bool) -> Run:
    if in_place:
        model.compile(backend=backend)
        return model
    return torch.compile(model, backend=backend, fullgraph=True)


def check_step(mix: PatchUp, model: nn.Module, run: Run, eager: nn.Module, x: Tensor, y: Tensor) -> None:
    """Make a step of the compiled model and, with the same draw, one of its uncompiled twin."""
    twin_mix = PatchUp(eager, prob=1.0, sites=HIDDEN)
    model.zero_grad()
    eager.zero_grad()
    mixed, target = mix(x, y)
    mix.loss(run(mixed), target).backward()
    mixed, target = twin_mix(x, y, draw=mix.draw)
    twin_mix.loss(eager(mixed), target).backward()
    twin_mix.detach()
    assert_same(grads(model), grads(eager), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("made", ["before", "after"])
def test_a_baseline_and_a_mixed_model_of_one_class(made: str, in_place: bool) -> None:
    """Whichever is compiled first, and whether or not the mixer was there then."""
    plain, model = make_model(), make_model()
    twins = copy.deepcopy(plain), copy.deepcopy(model)
    x, y = next(batches(1))
    run_plain = compiled(plain, "eager", in_place)
    mix = PatchUp(model, prob=1.0, sites=HIDDEN, seed=2) if made == "before" else None
    run_plain(x)
    mix = mix or PatchUp(model, prob=1.0, sites=HIDDEN, seed=2)
    run = compiled(model, "eager", in_place)
    for _ in range(3):
        check_step(mix, model, run, twins[1], x, y)
        torch.testing.assert_close(run_plain(x), twins[0](x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_place", [False, True])
def test_two_mixed_models_of_one_class_have_separate_graphs_and_draws(in_place: bool) -> None:
    models = [make_model(), make_model()]
    twins = copy.deepcopy(models)
    counter = CompileCounterWithBackend("eager")
    mixers = [PatchUp(model, prob=1.0, sites=HIDDEN, seed=seed) for seed, model in enumerate(models)]
    runs = [compiled(model, counter, in_place) for model in models]
    seen: set[tuple[Mixer, str | None]] = set()
    for x, y in batches(8):
        for mix, model, run, twin in zip(mixers, models, runs, twins):
            check_step(mix, model, run, twin, x, y)
            seen.add((mix, mix.draw.site))
    assert counter.frame_count == len(seen) > 2


def test_models_of_a_sweep_share_graphs() -> None:
    """One after the other, each with a mixer: what was compiled for the first serves all, and each draw is noticed."""
    gc.collect()  # models of other tests give their numbers free
    counter = CompileCounterWithBackend("eager")
    for seed in range(3):
        model = make_model()
        twin = copy.deepcopy(model)
        mix = PatchUp(model, prob=1.0, sites=["stage1"], seed=seed)
        run = torch.compile(model, backend=counter)
        for x, y in batches(2):
            check_step(mix, model, run, twin, x, y)
        mixed, target = mix(x, y)
        with pytest.raises(RuntimeError, match="'stage1' was never applied"):
            mix.loss(twin(mixed), target)
        if seed:
            mix.detach()
        else:  # and nobody detached it
            del mix, model, run
            gc.collect()
    assert counter.frame_count == 1


def test_sizes_of_batch_make_no_graphs_at_any_site() -> None:
    """A tensor that is reached through a module of torch, such as the ReLU of the stem, would be static in shape."""
    model = make_model()
    mix = PatchUp(model, prob=1.0, sites=HIDDEN, block_size=2)
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(model, backend=counter)
    for site in HIDDEN:
        before = counter.frame_count
        for size in (4, 5, 6, 7, 8, 9):
            x, y = torch.randn(size, 3, 32, 32), torch.randint(10, (size,))
            mixed, target = draw_at(mix, site, x, y)
            mix.loss(run(mixed), target)
        assert counter.frame_count - before <= 2, site


def test_both_models_under_inductor() -> None:
    plain, model = SmallNet(), SmallNet()
    twin = copy.deepcopy(model)
    x, y = next(batches(1))
    before = plain(x)
    run_plain = torch.compile(plain)
    torch.testing.assert_close(run_plain(x), before, rtol=1e-4, atol=1e-5)
    mix = PatchUp(model, prob=1.0, sites=["conv"], num_classes=10)
    run = torch.compile(model)
    mixed, target = mix(x, y)
    mix.loss(run(mixed), target).backward()
    twin_mix = PatchUp(twin, prob=1.0, sites=["conv"], num_classes=10)
    mixed, target = twin_mix(x, y, draw=mix.draw)
    twin_mix.loss(twin(mixed), target).backward()
    assert_same(grads(model), grads(twin), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run_plain(x), before, rtol=1e-4, atol=1e-5)


def test_train_and_eval_at_two_sizes_stay_compiled() -> None:
    model = make_model()
    mix = PatchUp(model, prob=1.0, sites=HIDDEN, block_size=2)
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(model, backend=counter)
    kinds = 0
    for size in (32, 48):
        x, y = torch.randn(4, 3, size, size), torch.randint(10, (4,))
        for site in HIDDEN:
            mixed, target = draw_at(mix, site, x, y)
            mix.loss(run(mixed), target)
        with mix.paused():
            run(x)
        model.eval()
        run(x)
        model.train()
        kinds += len(HIDDEN) + 2
        assert counter.frame_count == kinds
    assert kinds > 8, "more than Dynamo makes by default"
    graphs = counter.frame_count
    for site in HIDDEN:
        mixed, target = draw_at(mix, site, x, y)
        mix.loss(run(mixed), target)
        assert mix._arming._reached is None
    assert counter.frame_count == graphs


def test_a_mixer_never_lowers_the_limit() -> None:
    setattr(torch._dynamo.config, LIMIT, 1000)
    PatchUp(SmallNet(), sites=["conv"], num_classes=10)
    assert getattr(torch._dynamo.config, LIMIT) == 1000


def test_detach_takes_off_what_graphs_are_told_apart_by() -> None:
    model = make_model()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    mix = PatchUp(model, sites=HIDDEN)
    assert {name: set(vars(module)) for name, module in model.named_modules()} != before
    mix.detach()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


@pytest.mark.parametrize("copying", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_runs_its_own_modules(copying: Callable[[nn.Module], nn.Module]) -> None:
    model = make_model().eval()
    PatchUp(model, sites=HIDDEN)
    x, _ = next(batches(1))
    before = model(x)
    copied = copying(model)
    torch.testing.assert_close(copied(x), before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(copied(x), before)
