"""A change that looks at the features: in every layout, with autograd's gradients, recomputed and compiled."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from tests.support.expectations import drawn, mask_of
from timm_patchup import Mixer
from timm_patchup.core.draw import Change
from timm_patchup.core.layout import by_sample, features_in, with_features
from timm_patchup.core.method import DrawContext
from timm_patchup.core.sites import site_module

from .feature_changes import METHODS, Noisy, SpreadNoise
from .layout_models import LABELS
from .layout_models import make as make_with_layout
from .steps import HIDDEN, assert_same, batches, grads, make_model

# NCHW, class token, NHWC, tokens in another order, maps beside tokens, a row per patch.
LAYOUTS = ["test_resnet", "test_vit", "swin_tiny_patch4_window7_224", "hiera_tiny_224", "pit_ti_224"]
LAYOUTS += ["tnt_s_legacy_patch16_224"]


def by_hand(mix: Mixer, site: str, output: Any) -> Any:
    """Alter what a site gives as the change says, restated from its description."""
    draw = drawn(mix)
    change: Any = draw.change
    altered = []
    for tensor, layout in zip(features_in(output), draw.layouts[site], strict=True):
        rows = by_sample(tensor, len(draw.partner))
        new = rows
        if layout.size:
            new = layout.with_nchw(rows, change.apply(layout.to_nchw(rows), draw.partner))
        if layout.prefix and change.mixes:
            share = change.kept + (1 - change.kept) * change.lam
            outside = rows[:, : layout.prefix]
            mixed = share * outside + (1 - share) * outside[draw.partner]
            new = torch.cat([mixed, new[:, layout.prefix :]], dim=1)
        altered.append(new.reshape(tensor.shape))
    return with_features(output, altered)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_features_and_gradients_are_those_of_plain_autograd(name: str, method: str) -> None:
    if name == "test_resnet":
        model, x, labels = make_model().eval(), torch.randn(3, 3, 64, 64), LABELS[:3]
    else:
        (model, x), labels = make_with_layout(name), LABELS
    model.eval()
    clean = copy.deepcopy(model)
    mix = Mixer(model, METHODS[method](sites=("stage2",)), num_classes=10)
    model.training = True  # the model trains, its parts do not: no dropout
    mixed, target = mix(x, labels[: len(x)])
    output = model(mixed)
    mix.loss(output, target).backward()
    module = site_module(clean, mix.sites[0])
    module.register_forward_hook(lambda module, args, given: by_hand(mix, "stage2", given))
    expected = clean(x)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    F.cross_entropy(expected, target).backward()
    for (weight_name, weight), other in zip(model.named_parameters(), clean.parameters()):
        if other.grad is not None:
            torch.testing.assert_close(weight.grad, other.grad, rtol=1e-3, atol=1e-5, msg=weight_name)


def test_the_label_has_the_share_that_was_known_before() -> None:
    mix = Mixer(make_model(), METHODS["channels"](sites=("stage1",)), num_classes=10)
    x, y = next(batches(1))
    _, target = mix(x, y)
    draw = drawn(mix)
    own, partner = F.one_hot(y, 10).float(), F.one_hot(y[draw.partner], 10).float()
    torch.testing.assert_close(target, (0.5 + 0.5 * draw.lam) * own + 0.5 * (1 - draw.lam) * partner)
    assert mask_of(mix).shape == (1, 1, 1, 1)
    first, second, weight = mix.two_labels(target)  # type: ignore[misc]
    assert torch.equal(first, y)
    assert torch.equal(second, y[draw.partner])
    torch.testing.assert_close(weight, torch.tensor(0.5 + 0.5 * draw.lam))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_recomputed_is_the_same(reentrant: bool, method: str) -> None:
    timm.layers.set_reentrant_ckpt(reentrant)
    try:
        model = make_model()
        twin = copy.deepcopy(model)
        twin.set_grad_checkpointing(True)
        mixers = [Mixer(m, METHODS[method](sites=("stage1", "stage2")), num_classes=10, seed=1) for m in (model, twin)]
        for x, y in batches(3):
            state = torch.random.get_rng_state()
            for mix in mixers:
                mix.model.zero_grad()
                mixed, target = mix(x, y)
                mix.loss(mix.model(mixed.requires_grad_()), target).backward()
            assert torch.equal(torch.random.get_rng_state(), state), "numbers were drawn before the pass"
            assert_same(grads(model), grads(twin), rtol=1e-4, atol=1e-5)
            twin.load_state_dict(model.state_dict())
    finally:
        timm.layers.set_reentrant_ckpt(False)


@pytest.mark.parametrize("method", METHODS)
def test_compiled_with_one_graph_per_site(method: str) -> None:
    torch._dynamo.reset()
    model = make_model()
    twin = copy.deepcopy(model)
    mix, twin_mix = (Mixer(m, METHODS[method](sites=tuple(HIDDEN)), num_classes=10) for m in (model, twin))
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(model, backend=counter, fullgraph=True)
    seen = set()
    for x, y in batches(8):
        for mixer, network in ((mix, run), (twin_mix, twin)):
            mixer.model.zero_grad()
            mixed, target = mixer(x, y)
            mixer.loss(network(mixed), target).backward()  # type: ignore[operator]
        assert_same(grads(model), grads(twin), rtol=1e-4, atol=1e-5)
        twin.load_state_dict(model.state_dict())
        seen.add(drawn(mix).site)
        assert counter.frame_count == len(seen)
    assert len(seen) > 1


@pytest.mark.parametrize("method", METHODS)
def test_features_keep_their_dtype_under_autocast(method: str) -> None:
    model = make_model()
    mix = Mixer(model, METHODS[method](sites=("stage1",)), num_classes=10)
    following: list[torch.dtype] = []
    model.layer2.register_forward_pre_hook(lambda module, args: following.append(args[0].dtype))
    x, y = next(batches(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, target = mix(x, y)
        loss = mix.loss(model(mixed), target)
    assert following[-1] is torch.bfloat16
    loss.backward()


def test_all_splits_of_a_sample_are_altered_alike() -> None:
    mix = Mixer(make_model(), METHODS["noise"](sites=("stage1",)), num_classes=10, num_splits=2)
    x, y = next(batches(1))
    mix(torch.cat([x, x]), torch.cat([y, y]))
    change: Any = drawn(mix).change
    assert torch.equal(*change.noise.chunk(2))


def test_features_that_do_not_fit_the_draw() -> None:
    model = make_model()
    mix = Mixer(model, METHODS["channels"](sites=("stage1",)), num_classes=10)
    for wrong in (lambda x: x[:3], lambda x: x[:, :, :32]):
        x, y = next(batches(1))
        x, _ = mix(x, y)
        with pytest.raises(RuntimeError, match=r"the draw was made for a batch of 4.*mix\.paused"):
            model(wrong(x))


def test_a_change_that_returns_another_shape() -> None:
    @dataclass(frozen=True)
    class Pooled(SpreadNoise):
        def apply(self, features: Tensor, partner: Tensor) -> Tensor:
            return features.mean((2, 3), keepdim=True)

    @dataclass(frozen=True, kw_only=True)
    class Pooling(Noisy):
        def change(self, context: DrawContext) -> Change:
            change: Any = super().change(context)
            return Pooled(**vars(change))

    model: nn.Module = make_model()
    mix = Mixer(model, Pooling(sites=("stage1",)), num_classes=10)
    x, y = next(batches(1))
    x, _ = mix(x, y)
    with pytest.raises(RuntimeError, match=r"Pooled\.apply at site 'stage1' must return the shape"):
        model(x)
