"""Puzzle Mix in use: what varies, what a call leaves untouched, replay, resume, batches, layouts and settings."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.conftest import NUM_CLASSES
from tests.support.expectations import MakeModel
from timm_patchup import Draw, create_mixer, list_methods
from timm_patchup.methods.puzzle_images import join_images
from timm_patchup.methods.puzzle_mix import PuzzleMix
from timm_patchup.recipe import load_recipe

from .puzzle_cases import SmallNet, batch, drawn


def test_block_numbers_and_lam_vary(net: nn.Module) -> None:
    mix = PuzzleMix(net)
    x, y = batch(3, (16, 16))
    sizes, priors = set(), set()
    for _ in range(40):
        mix(x, y)
        sizes.add(drawn(mix).mask.shape[1])
        priors.add(drawn(mix).prior)
    assert sizes == {2, 4, 8, 16}
    assert len(priors) == 40


# What a call leaves as it was


def test_call_leaves_no_trace(net: nn.Module) -> None:
    mix = PuzzleMix(net, alpha=1e3)
    x, y = batch()
    net(x).sum().backward()
    net.get_submodule("drop").eval()  # a flag that is not the model's
    grads = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    state = {key: value.clone() for key, value in net.state_dict().items()}
    flags = [module.training for module in net.modules()]
    random = torch.get_rng_state()
    mixed, target = mix(x, y)
    assert not torch.equal(mixed, x)
    assert not mixed.requires_grad
    assert not target.requires_grad
    assert not x.requires_grad
    assert x.grad is None
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in net.modules()] == flags
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    kept = [p.grad for p in net.parameters() if p.grad is not None]
    assert len(kept) == len(grads) == len(list(net.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(kept, grads))


def test_a_failing_pass_leaves_the_model_training(net: nn.Module) -> None:
    mix = PuzzleMix(net)
    with pytest.raises(RuntimeError):
        mix(torch.randn(2, 4, 32, 32), torch.tensor([1, 2]))  # four channels
    assert all(module.training for module in net.modules())


# Switches, replay and resume


def test_switches_leave_the_batch_alone(net: nn.Module) -> None:
    mix = PuzzleMix(net)
    x, y = batch()
    own = F.one_hot(y, NUM_CLASSES).float()

    def untouched() -> bool:
        mixed, target = mix(x, y)
        return mixed is x and torch.equal(target, own) and mix.draw is not None and mix.draw.site is None

    assert not untouched()
    with mix.paused():
        assert untouched()
    mix.mixup_enabled = False
    assert untouched()
    mix.mixup_enabled = True
    net.eval()
    assert untouched()
    net.train()
    assert mix.state_dict()["count"] == 1  # nothing was drawn meanwhile
    mix.prob = 0.0
    assert untouched()
    assert mix.state_dict()["count"] == 2


def test_replay_needs_no_model(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    mix = PuzzleMix(net, alpha=1e3, t_eps=0.05)
    x, y = batch()
    mixed, target = mix(x, y)
    draw = drawn(mix)
    other, _ = mix(x, y)
    assert not torch.equal(other, mixed)
    monkeypatch.setattr(PuzzleMix, "saliency", None)
    again, target_again = mix(x, y, draw=draw)
    assert torch.equal(again, mixed)
    assert torch.equal(target_again, target)
    assert mix.state_dict()["count"] == 2
    with pytest.raises(TypeError, match="must be a PuzzleDraw"):
        mix(x, y, draw=Draw("input", draw.partner, 0.0, draw.changed, draw.kept))
    with pytest.raises(ValueError, match=r"draw.mask has shape .* needs \(6, R, C\)"):
        mix(x, y, draw=replace(draw, mask=draw.mask[:3]))


def test_resume_goes_on_exactly(net: nn.Module) -> None:
    x, y = batch()
    mix = PuzzleMix(net, seed=3)
    mix(x, y)
    state = mix.state_dict()
    expected = [mix(x, y) for _ in range(3)]
    mix.detach()
    other = PuzzleMix(net, seed=0)
    other.load_state_dict(state)
    torch.rand(7)
    for (mixed, target), (mixed_then, target_then) in zip((other(x, y) for _ in range(3)), expected):
        assert torch.equal(mixed, mixed_then)
        assert torch.equal(target, target_then)


# Batches and layouts


def test_a_sample_that_is_its_own_partner_is_not_altered(net: nn.Module) -> None:
    mix = PuzzleMix(net, t_eps=0.01)
    x, y = batch(3)
    seen = 0
    for _ in range(12):
        mixed, target = mix(x, y)
        for i, j in enumerate(drawn(mix).partner.tolist()):
            if i == j:
                seen += 1
                assert torch.equal(mixed[i], x[i])
                assert target[i, y[i]] == 1.0
                assert drawn(mix).kept[i] == 1.0
    assert seen > 3


def test_batch_of_one_is_not_altered(net: nn.Module) -> None:
    x, y = batch(1)
    mixed, target = PuzzleMix(net)(x, y)
    assert torch.equal(mixed, x)
    assert torch.equal(target, F.one_hot(y, NUM_CLASSES).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtype_and_memory_format_are_kept(dtype: torch.dtype, net: nn.Module) -> None:
    x, y = batch()
    for model in (net, SmallNet().train().to(dtype)):  # images in half precision for a model in full, and both in half
        plain, last = (PuzzleMix(model, seed=1) for _ in range(2))
        images = x.to(dtype)
        mixed, target = plain(images, y)
        mixed_last, _ = last(images.contiguous(memory_format=torch.channels_last), y)
        assert mixed.dtype == mixed_last.dtype == dtype
        assert target.dtype is torch.float32
        assert mixed.is_contiguous()
        assert mixed_last.is_contiguous(memory_format=torch.channels_last)
        assert not mixed_last.is_contiguous()
        draw = drawn(last)
        sources = {"own_source": draw.own_source, "partner_source": draw.partner_source}
        assert torch.equal(mixed_last, join_images(images, draw.partner, draw.mask, **sources))


def test_compiled_model_trains(make_model: MakeModel) -> None:
    model = make_model()
    mix = PuzzleMix(model)
    compiled = torch.compile(model, backend="eager")
    x, y = batch(4, (64, 64))
    for _ in range(2):
        mixed, target = mix(x, y)
        mix.loss(compiled(mixed), target).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_under_ddp_gradients_are_reduced_once(net: nn.Module, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        mix = PuzzleMix(net)
        wrapped = nn.parallel.DistributedDataParallel(net)
        x, y = batch()
        for _ in range(3):  # a reducer that saw another backward pass refuses the next forward pass
            net.zero_grad()
            mixed, target = mix(x, y)
            assert all(p.grad is None for p in net.parameters())
            mix.loss(wrapped(mixed), target).backward()
            assert all(p.grad is not None for p in net.parameters())
    finally:
        dist.destroy_process_group()


# Settings


def test_registered_with_the_papers_settings(net: nn.Module) -> None:
    assert "puzzle_mix" in list_methods()
    settings = create_mixer("puzzle_mix", net).settings()
    paper = {"alpha": 1.0, "block_num": [2, 4, 8, 16], "n_labels": 3, "beta": 1.2, "gamma": 0.5, "eta": 0.2}
    assert paper.items() <= settings.items()
    assert settings["transport"] is True
    assert settings["t_eps"] == 0.8
    assert settings["prob"] == 1.0
    assert settings["objective"] == "l2"
    assert create_mixer("puzzle_mix", net, block_num=4).settings()["block_num"] == [4]


@pytest.mark.parametrize(("benchmark", "alpha"), [("tiny_imagenet_resnet101", 0.2), ("cifar10_preactresnet18", 1.0)])
def test_recipe_has_the_papers_alpha(benchmark: str, alpha: float, net: nn.Module) -> None:
    recipe = load_recipe(f"{benchmark}_puzzle_mix")
    assert recipe.mix == "puzzle_mix"
    assert recipe.mix_settings["alpha"] == alpha
    mix = create_mixer(recipe.mix, net, **recipe.mix_settings)
    assert mix.settings()["block_num"] == [2, 4, 8, 16]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"alpha": 0}, "alpha must lie in"),
        ({"block_num": []}, "block_num is empty"),
        ({"block_num": [2, 0]}, "block_num must be at least 1"),
        ({"block_num": "2"}, "block_num must be a whole number"),
        ({"n_labels": 1}, "n_labels must be at least 2"),
        ({"beta": -1}, "beta must lie in"),
        ({"gamma": 1.5}, "gamma must lie in"),
        ({"eta": -0.1}, "eta must lie in"),
        ({"t_eps": 0}, "t_eps must lie in"),
        ({"transport": 1}, "transport must be True or False"),
    ],
)
def test_bad_settings_say_what_is_allowed(setting: dict[str, object], message: str, net: nn.Module) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        PuzzleMix(net, **setting)  # type: ignore[arg-type]
