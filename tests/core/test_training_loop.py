"""What a training loop relies on works with a mixer: checkpointing, autocast, channels_last, accumulation, EMA."""

import copy
import gc
import io
import weakref

import pytest
import timm
import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from timm_patchup import PatchUp
from timm_patchup.core.hooks import SiteHook

from .steps import HIDDEN, SmallNet, assert_same, batches, draw_at, grads, make_model


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("family", ["test_resnet", "test_efficientnet", "test_convnext"])
def test_gradient_checkpointing_sees_the_same_mask(mode: str, reentrant: bool, family: str) -> None:
    timm.layers.set_reentrant_ckpt(reentrant)
    try:
        torch.manual_seed(0)
        model = timm.create_model(family, num_classes=10)
        twin = copy.deepcopy(model)
        twin.set_grad_checkpointing(True)
        mix, twin_mix = (PatchUp(m, mode=mode, prob=1.0, seed=2) for m in (model, twin))
        seen = set()
        for x, y in batches(8):
            for network, mixer in ((model, mix), (twin, twin_mix)):
                network.zero_grad()
                mixed, target = mixer(x, y)
                mixer.loss(network(mixed.requires_grad_()), target).backward()
            seen.add(mix.draw.site)
            assert_same(grads(model), grads(twin), rtol=1e-4, atol=1e-5)
            # Checkpointed BatchNorms run twice and so move their statistics twice.
            twin.load_state_dict(model.state_dict())
        assert len(seen & set(HIDDEN)) >= 2
    finally:
        timm.layers.set_reentrant_ckpt(False)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("between", ["another batch", "batch left alone", "clean pass", "validation"])
def test_what_is_recomputed_has_the_draw_of_its_pass(between: str, reentrant: bool) -> None:
    """One backward pass for two forward passes, or after something else was armed."""
    timm.layers.set_reentrant_ckpt(reentrant)
    try:
        models = make_model(), make_model()
        models[1].set_grad_checkpointing(True)
        for model in models:
            mix = PatchUp(model, prob=1.0, sites=["stage1", "stage2"], block_size=3, seed=2)
            (x, y), (other, labels) = batches(2)
            mixed, target = draw_at(mix, "stage1", x, y)
            loss = mix.loss(model(mixed), target)
            if between == "another batch":
                mixed, target = draw_at(mix, "stage2", other, labels)
                loss = loss + mix.loss(model(mixed), target)
            elif between == "batch left alone":
                mix.mixup_enabled = False
                loss = loss + mix.run(model, other, labels)[0]
            elif between == "clean pass":
                with mix.paused():
                    loss = loss + nn.functional.cross_entropy(model(other), labels)
            else:
                mix.run(model.eval(), other, labels)
                model.train()
            loss.backward()
        assert_same(grads(models[0]), grads(models[1]), rtol=1e-4, atol=1e-5)
    finally:
        timm.layers.set_reentrant_ckpt(False)


def test_what_is_recomputed_without_an_output_of_the_model_has_the_draw_that_is_armed() -> None:
    models = make_model(), make_model()
    models[1].set_grad_checkpointing(True)
    for model in models:
        mix = PatchUp(model, prob=1.0, sites=["stage1"], block_size=3)
        for (x, y), whole in zip(batches(2), (True, False)):
            model.zero_grad()
            mixed, target = mix(x, y)
            output = model(mixed) if whole else model.forward_head(model.forward_features(mixed))
            mix.loss(output, target).backward()
    assert_same(grads(models[0]), grads(models[1]), rtol=1e-4, atol=1e-5)


def test_parameters_that_a_model_returns_keep_nothing_of_a_pass() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.scale = SmallNet(), nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.net(x), "scale": self.scale}

    model = Scaled()
    mix = PatchUp(model, prob=1.0, sites=["net.conv"], num_classes=10)
    for x, y in batches(2):
        mixed, target = mix(x, y)
        output = model(mixed)
        mix.loss(output["scale"] * output["logits"], target).backward()
    assert not model.scale._backward_hooks


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_bfloat16_autocast_keeps_features_in_bfloat16(mode: str) -> None:
    model = make_model()
    mix = PatchUp(model, mode=mode, prob=1.0, sites=["stage1"])
    following: list[torch.dtype] = []
    model.layer2.register_forward_pre_hook(lambda module, args: following.append(args[0].dtype))
    x, y = next(batches(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, target = mix(x, y)
        loss = mix.loss(model(mixed), target)
    loss.backward()
    assert following[-1] is torch.bfloat16
    assert loss.dtype is torch.float32
    assert torch.isfinite(loss)
    assert all(torch.isfinite(grad).all() for grad in grads(model).values())


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("mask", ["batch", "sample"])
@pytest.mark.parametrize("site", ["input", *HIDDEN])
def test_channels_last_is_kept_and_changes_nothing(mode: str, mask: str, site: str) -> None:
    model = make_model()
    twin = copy.deepcopy(model).to(memory_format=torch.channels_last)
    mix, twin_mix = (PatchUp(m, mode=mode, mask=mask, prob=1.0, sites=[site], seed=4) for m in (model, twin))
    x, y = next(batches(1))
    formats: list[bool] = []
    after = {"input": twin.conv1, "stem": twin.maxpool, "stage1": twin.layer2, "stage2": twin.layer3}[site]
    after.register_forward_pre_hook(
        lambda module, args: formats.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    for mixer, run, images in ((mix, model, x), (twin_mix, twin, x.contiguous(memory_format=torch.channels_last))):
        mixed, target = mixer(images, y)
        mixer.loss(run(mixed), target).backward()
    assert formats[-1]
    assert_same(grads(model), grads(twin), rtol=1e-3, atol=1e-4)


def test_gradient_accumulation_sums_the_gradients_of_both_draws() -> None:
    model = make_model()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    mix = PatchUp(model, prob=1.0, sites=HIDDEN, seed=6)
    single: list[dict[str, Tensor]] = []
    draws = []
    for x, y in batches(2):
        model.zero_grad()
        mixed, target = mix(x, y)
        mix.loss(model(mixed), target).backward()
        single.append(grads(model))
        draws.append(mix.draw)
    model.zero_grad()
    for (x, y), draw in zip(batches(2), draws):
        mixed, target = mix(x, y, draw=draw)
        mix.loss(model(mixed), target).backward()
    summed = {name: single[0][name] + single[1][name] for name in single[0]}
    assert_same(grads(model), summed, rtol=1e-4, atol=1e-5)


def test_two_forwards_on_one_draw_are_both_mixed() -> None:
    """A second pass over the same batch, as sharpness-aware optimisers make, sees the same draw."""
    model = make_model()
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, y = next(batches(1))
    mixed, _ = mix(x, y)
    first = model(mixed)
    assert torch.equal(first, model(mixed))
    with mix.paused():
        assert not torch.equal(first, model(mixed))


def test_a_model_that_nobody_keeps_is_freed_with_its_mixer() -> None:
    model = make_model()
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, y = next(batches(1))
    mixed, target = mix(x, y)
    mix.loss(model(mixed), target).backward()
    gone = weakref.ref(model)
    del model, mix
    gc.collect()
    assert gone() is None


def test_ema_copy_is_inert() -> None:
    model = make_model()
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, y = next(batches(1))
    mixed, target = mix(x, y)
    mix.loss(model(mixed), target).backward()
    ema = ModelEmaV3(model)
    ema.update(model)
    ema.module.train()
    with mix.paused():
        plain = model(x)
    model.train()
    ema.module.load_state_dict(model.state_dict())
    mix(x, y)
    torch.testing.assert_close(ema.module(x), plain)
    with pytest.raises(RuntimeError, match="never applied"):
        mix(x, y)
    PatchUp(ema.module)  # an inert copy is free for another mixer


def test_pickled_model_is_inert() -> None:
    model = make_model()
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, y = next(batches(1))
    mix(x, y)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    with mix.paused():
        assert torch.equal(loaded(x), model(x))


def test_state_dict_matches_timm_and_detach_leaves_no_hook() -> None:
    model = make_model()
    keys = list(model.state_dict())
    mix = PatchUp(model)
    assert list(model.state_dict()) == keys
    assert sum(isinstance(h, SiteHook) for m in model.modules() for h in m._forward_hooks.values()) == len(HIDDEN)
    mix.detach()
    assert all(not module._forward_hooks for module in model.modules())
    with pytest.raises(RuntimeError, match="detached"):
        mix(*next(batches(1)))
    PatchUp(model)
