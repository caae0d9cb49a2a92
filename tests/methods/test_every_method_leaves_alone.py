"""What every method leaves as it is: eval mode, a pause, a detached model, copies, inputs and global randomness."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.utils import ModelEmaV3
from torch import Tensor

from tests.support.expectations import hook_count

from .every_method import BY_SALIENCY, CASES, HIDDEN, INSIDE, batch, last, mixer_of, one_hot, step, tiny_net


@pytest.mark.parametrize("name", CASES)
def test_eval_is_untouched(name: str) -> None:
    model = tiny_net()
    clean = copy.deepcopy(model).eval()
    mix = mixer_of(name, model)
    x, y = batch()
    for seed in range(6):
        mixed, _ = mix(*batch(seed=seed))
        model.eval()
        assert torch.equal(model(x), clean(x)), "armed, but in eval mode"
        model.train()
        with torch.no_grad():
            model.norm.eval()
            model(mixed)
    model.eval()
    count = mix.state_dict()["count"]
    same_x, target = mix(x, y)
    assert same_x is x
    assert last(mix).site is None
    assert torch.equal(target, one_hot(y))
    assert torch.equal(model(x), clean(x))
    assert mix.state_dict()["count"] == count


@pytest.mark.parametrize("name", CASES)
def test_mixup_enabled_and_paused(name: str) -> None:
    model = tiny_net()
    model.norm.eval()
    clean = copy.deepcopy(model)
    mix = mixer_of(name, model)
    x, y = batch()
    altered = 0
    for _ in range(6):
        mixed, target = mix(x, y)
        with mix.paused():
            assert torch.equal(model(x), clean(x))
            state = mix.state_dict()
        altered += not torch.equal(model(mixed), clean(x))
        for off in ("paused", "mixup_enabled"):
            mix.mixup_enabled = off == "paused"
            with mix.paused() if off == "paused" else torch.enable_grad():
                plain, target, output = step(mix, x, y)
            assert plain is x
            assert torch.equal(target, one_hot(y))
            assert torch.equal(output, clean(x))
            torch.testing.assert_close(mix.loss(output, target), F.cross_entropy(output, y))
        mix.mixup_enabled = True
        assert mix.state_dict() == state
    # A method that looks at the images may leave a batch as it is.
    assert altered in ((0,) if name == "none" else range(1, 7) if name in BY_SALIENCY else (6,))


@pytest.mark.parametrize("name", CASES)
def test_detach_leaves_nothing_behind(name: str) -> None:
    model = tiny_net()
    model.norm.eval()
    clean = copy.deepcopy(model)
    names = {at: sorted(vars(module)) for at, module in model.named_modules()}
    mix = mixer_of(name, model)
    assert hook_count(model) == (len(HIDDEN) + 2 if name in INSIDE else 0)  # where the model begins and ends, too
    x, y = batch()
    mix(x, y)  # armed when it is detached
    mix.detach()
    assert hook_count(model) == 0
    assert {at: sorted(vars(module)) for at, module in model.named_modules()} == names
    assert torch.equal(model(x), clean(x))
    with pytest.raises(RuntimeError, match="detached"):
        mix(x, y)
    mixer_of(name, model)


@pytest.mark.parametrize("name", CASES)
def test_global_random_state_and_inputs_are_untouched(name: str) -> None:
    mix = mixer_of(name, tiny_net())
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    for seed in range(4):
        x, y = batch(seed=seed)
        x_before, y_before = x.clone(), y.clone()
        _, target, output = step(mix, x, y)
        mix.loss(output, target).backward()
        assert torch.equal(x, x_before)
        assert torch.equal(y, y_before)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("default", ["meta", torch.float64, torch.bfloat16])
def test_torchs_default_device_and_dtype_do_not_matter(default: str | torch.dtype, name: str) -> None:
    """What is made on the default device by mistake is on none here: meta stands for an accelerator."""
    before = torch.get_default_dtype()
    batches = [batch(seed=seed) for seed in range(3)]
    found: list[list[Tensor]] = []
    for changed in (False, True):
        model = tiny_net()
        mix = mixer_of(name, model)
        found.append([])
        try:
            if changed and isinstance(default, str):
                torch.set_default_device(default)
            elif changed:
                torch.set_default_dtype(default)
            for x, y in batches:
                mixed, target = mix(x, y)
                loss = mix.loss(model(mixed), target.clone())
                found[-1] += [mixed, target, loss]
        finally:
            torch.set_default_device(None)
            torch.set_default_dtype(before)
    for plain, same in zip(*found, strict=True):
        assert torch.equal(plain, same)
        assert plain.dtype is same.dtype


@pytest.mark.parametrize("name", CASES)
def test_copies_of_the_model_are_inert(name: str) -> None:
    model = tiny_net()
    model.norm.eval()
    clean = copy.deepcopy(model)
    mix = mixer_of(name, model)
    for _ in range(4):
        mixed, target, output = step(mix, *batch())
        mix.loss(output, target).backward()
        ema = ModelEmaV3(model).module.train()
        ema.norm.eval()
        mixed, _ = mix(*batch())
        assert torch.equal(ema(mixed), clean(mixed))
        model(mixed)
