"""Every method alters features where and as its draw states, and its targets and loss follow."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from timm.loss import LabelSmoothingCrossEntropy
from torch import Tensor

from tests.conftest import NUM_CLASSES
from tests.support.expectations import SWIN, MakeModel, expected_mix, record
from timm_patchup import Draw, Mixer, MixTask, list_sites
from timm_patchup.core.draw import Erase, Mix

from .every_method import (
    CASES,
    ERASING,
    HIDDEN,
    INSIDE,
    MIXING,
    WITH_SITES,
    batch,
    last,
    mixer_of,
    one_hot,
    scale_of,
    step,
    tiny_net,
)


@pytest.mark.parametrize("name", CASES)
def test_features_are_altered_where_and_as_the_draw_states(name: str) -> None:
    model = tiny_net()
    clean = copy.deepcopy(model)
    mix = mixer_of(name, model)
    seen: dict[str, list[Tensor]] = {site: [] for site in HIDDEN}
    for site in HIDDEN:
        record(model.get_submodule(site), seen[site])
        record(clean.get_submodule(site), seen[site])
    sites = set()
    every = {None} if name == "none" else {"input", *HIDDEN} if name in INSIDE else {"input"}
    for seed in range(200):  # a site is missed with probability 1e-35
        if seed >= 12 and sites == every:
            break
        x, y = batch(seed=seed)
        mixed, _, output = step(mix, x, y)
        draw = last(mix)
        if draw.site in HIDDEN:
            clean(x)
            after, before = seen[draw.site][-2:]
        else:
            after, before = mixed, x
        if draw.change is None:
            assert torch.equal(after, before)
            assert torch.equal(output, clean(x))
        elif isinstance(draw.change, Erase):
            holes_of_batch = draw.change.changed.expand_as(before).flatten(1).tolist()
            rows = [
                [0.0 if hole else value * draw.change.scale.item() for value, hole in zip(sample, holes)]
                for sample, holes in zip(before.flatten(1).tolist(), holes_of_batch)
            ]
            torch.testing.assert_close(after.flatten(1), torch.tensor(rows))
        elif isinstance(draw.change, Mix):
            whole = replace(draw, change=Mix(draw.change.changed.expand(-1, *before.shape[1:]), draw.lam))
            torch.testing.assert_close(after.double(), expected_mix(before, whole, draw.lam), rtol=1e-5, atol=1e-6)
        else:  # images joined in another way, tested in test_puzzle_images.py
            assert draw.site == "input"
            assert torch.equal(after, draw.change.apply(before, draw.partner))
        sites.add(draw.site)
    assert sites == every


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", CASES)
def test_targets_sum_to_one_and_follow_the_draw(name: str, smoothing: float) -> None:
    mix = mixer_of(name, tiny_net(), label_smoothing=smoothing)
    shared = 0
    for seed in range(8):
        x, y = batch(seed=seed)
        _, target, _ = step(mix, x, y)
        draw = last(mix)
        own = one_hot(y) * (1.0 - smoothing) + smoothing / NUM_CLASSES
        weight = (draw.kept + (1.0 - draw.kept) * draw.lam).reshape(-1, 1) if draw.mixes else torch.tensor(1.0)
        torch.testing.assert_close(target, weight * own + (1.0 - weight) * own[draw.partner])
        torch.testing.assert_close(target.sum(1), torch.ones(len(y)))
        assert target.dtype is torch.float32
        assert (target >= 0.0).all()
        assert draw.mixes or torch.equal(draw.partner, torch.arange(len(y)))
        shared += not torch.equal(target, own)
    assert (shared > 0) == (name in MIXING)


@pytest.mark.parametrize("name", CASES)
def test_loss_matches_the_target_and_is_twice_that_for_the_papers_objective(name: str) -> None:
    mix = mixer_of(name, tiny_net())
    x, y = batch()
    _, target, output = step(mix, x, y)
    method = last(mix).method
    assert method in mix.method.members
    times = 2.0 if method.objective == "paper" else 1.0
    assert times == 2.0 or name not in ("hard_patchup", "soft_patchup")
    torch.testing.assert_close(mix.loss(output, target), times * F.cross_entropy(output, target))


@pytest.mark.parametrize("name", sorted(ERASING))
def test_an_erased_batch_has_exactly_timms_loss_in_a_task(name: str) -> None:
    model, criterion = tiny_net(), LabelSmoothingCrossEntropy(0.1)
    task = MixTask(model, criterion, mixer=mixer_of(name, model), verbose=False)
    x, y = batch()
    asked: list[Tensor] = []
    criterion.register_forward_pre_hook(lambda module, args: asked.append(args[1]))
    result = task(x, y)
    assert last(task.mixer).changed is not None
    assert len(asked) == 1
    assert asked[0] is y, "the labels as they came"
    assert torch.equal(result["loss"], criterion(result["output"], y))


@pytest.mark.parametrize("name", sorted(ERASING))
def test_erasing_draw_made_by_hand_keeps_the_targets_whatever_its_partner(name: str) -> None:
    mix = mixer_of(name, tiny_net())
    x, y = batch()
    half = torch.arange(12).reshape(1, 1, 12, 1).expand(1, 1, 12, 10) < 6
    draw = Draw("input", torch.arange(5, -1, -1), Erase(half, torch.tensor(2.0)))
    erased, target = mix(x, y, draw=draw)
    assert torch.equal(target, one_hot(y))
    assert torch.equal(erased, torch.cat([torch.zeros(6, 3, 6, 10), 2.0 * x[:, :, 6:]], dim=2))


@pytest.mark.parametrize("name", WITH_SITES)
def test_maps_with_channels_last_in_their_shape_are_altered_too(name: str, make_model: MakeModel) -> None:
    model = make_model("swin_tiny_patch4_window7_224", **SWIN).eval()  # no stochastic depth: only the mixer differs
    mix = mixer_of(name, model, sites=["stage1"])
    seen: list[Tensor] = []
    model.get_submodule(list_sites(model)["stage1"]).register_forward_hook(lambda module, args, out: seen.append(out))
    x, y = torch.randn(2, 3, 64, 64), torch.tensor([1, 2])
    model(x)
    model.training = True
    mix(x, y)
    swap = replace(last(mix), partner=torch.tensor([1, 0]))
    mixed, target = mix_again(mix, x, y, swap)
    mix.loss(model(mixed), target).backward()
    changed, (clean, altered) = last(mix).changed, (one.permute(0, 3, 1, 2) for one in (seen[0], seen[-1]))
    assert changed is not None
    assert changed.shape[1:] in ((1, 1, 1), (1, 16, 16), (8, 16, 16))
    changed = changed.expand_as(clean)
    assert changed.any()
    scale = scale_of(last(mix))
    if scale is None:
        lam = torch.as_tensor(last(mix).lam).reshape(-1, 1, 1, 1)
        other = (1 - lam) * clean.flip(0) + lam * clean
        expected = torch.where(changed, other, clean)
    else:
        expected = torch.where(changed, 0.0, clean * scale)
    torch.testing.assert_close(altered, expected)


def mix_again(mix: Mixer, x: Tensor, y: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    mix._arming.disarm()
    return mix(x, y, draw=draw)


def test_a_method_at_the_input_can_precede_one_inside() -> None:
    model = tiny_net()
    first, second = mixer_of("cutout", model), mixer_of("manifold_mixup", model, sites=["first"])
    x, y = batch()
    mixed, target = second(*first(x, y))
    second.loss(model(mixed), target).backward()
    assert (mixed == 0.0).any()
    assert torch.equal(mixed, x * (last(first).changed.logical_not()))  # type: ignore[union-attr]
    lam, partner = last(second).lam, last(second).partner
    torch.testing.assert_close(target, lam * one_hot(y) + (1.0 - lam) * one_hot(y)[partner])
