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
from timm_patchup.core import mixer
from timm_patchup.core.draw import Mix
from timm_patchup.errors import UserError
from timm_patchup.methods.puzzle_images import join_images
from timm_patchup.methods.puzzle_mix import PuzzleMix
from timm_patchup.recipe import load_recipe

from .puzzle_cases import SmallNet, batch, drawn, puzzle_mix


def test_block_numbers_and_lam_vary(net: nn.Module) -> None:
    mix = puzzle_mix(net)
    x, y = batch(3, (16, 16))
    sizes, priors = set(), set()
    for _ in range(40):
        mix(x, y)
        _, puzzle = drawn(mix)
        sizes.add(puzzle.mask.shape[1])
        priors.add(puzzle.prior)
    assert sizes == {2, 4, 8, 16}
    assert len(priors) == 40


def test_the_cell_decides_what_edges_cost_and_not_what_moves(net: nn.Module) -> None:
    x, y = batch(8, (64, 64))
    found = {}
    for cell in (1, 4, 8):
        mix = puzzle_mix(net, cell=cell, block_num=[4], gamma=1.0, beta=50.0)
        mix(x, y)
        found[cell] = drawn(mix)[1]
        mix.detach()
    assert len({puzzle.prior for puzzle in found.values()}) == 1, "the same draw"
    assert not torch.equal(found[1].mask, found[4].mask)
    assert not torch.equal(found[4].mask, found[8].mask)
    sources = [puzzle.own_source for puzzle in found.values()]
    assert all(source is not None and source.shape == (8, 16, 16) for source in sources)


# What a call leaves as it was


def test_call_leaves_no_trace(net: nn.Module) -> None:
    mix = puzzle_mix(net, alpha=1e3)
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
    mix = puzzle_mix(net)
    with pytest.raises(RuntimeError):
        mix(torch.randn(2, 4, 32, 32), torch.tensor([1, 2]))  # four channels
    assert all(module.training for module in net.modules())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_image_that_is_not_finite_is_named(net: nn.Module, value: float) -> None:
    x, y = batch()
    x[2, 0, 3, 3] = value
    with pytest.raises(UserError, match=r"puzzle_mix.*image 2"):
        puzzle_mix(net)(x, y)


@pytest.mark.parametrize("n_labels", [33, 1_000_000])
def test_more_weights_than_fit_into_memory_are_refused(n_labels: int) -> None:
    """The solver compares each with each in every block."""
    with pytest.raises(UserError, match="n_labels must be a whole number in"):
        PuzzleMix(n_labels=n_labels)


# Switches, replay and resume


def test_switches_leave_the_batch_alone(net: nn.Module) -> None:
    mix = puzzle_mix(net)
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
    mix.method = replace(mix.method, prob=0.0)
    assert untouched()
    assert mix.state_dict()["count"] == 2


def test_replay_needs_no_model(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    mix = puzzle_mix(net, alpha=1e3, t_eps=0.05)
    x, y = batch()
    mixed, target = mix(x, y)
    draw, _ = drawn(mix)
    other, _ = mix(x, y)
    assert not torch.equal(other, mixed)
    monkeypatch.setattr(mixer, "saliency", None)
    again, target_again = mix(x, y, draw=draw)
    assert torch.equal(again, mixed)
    assert torch.equal(target_again, target)
    assert mix.state_dict()["count"] == 2
    # A draw holds all that it does, so another method's draw can be replayed, too.
    swapped, _ = mix(x, y, draw=Draw("input", draw.partner, Mix(torch.ones(1, 1, 1, 1) > 0)))
    assert torch.equal(swapped, x[draw.partner])
    assert mix.state_dict()["count"] == 2


NAN = float("nan")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mask": torch.ones(3, 2, 2)}, r"^draw\.change\.mask must be a float tensor \(6, R, C\), got .*\(3, 2, 2\)$"),
        ({"mask": torch.ones(6, 2)}, r"^draw\.change\.mask must be a float tensor \(6, R, C\), got .*\(6, 2\)$"),
        ({"mask": None}, r"^draw\.change\.mask must be a float tensor \(6, R, C\), got None$"),
        ({"own_source": torch.zeros(6, 2, 2)}, r"^draw\.change\.own_source must be an int64 tensor \(6, R, C\), got "),
        (
            {"partner_source": torch.zeros(5, 2, 2).long()},
            r"^draw\.change\.partner_source must be an int64 tensor \(6, R, C\), got .*\(5, 2, 2\)$",
        ),
        ({"changed": torch.ones(6, 1, 32, 32)}, r"^draw\.changed must be a bool mask of features, got torch\.float32$"),
        ({"changed": torch.ones(4, 1, 32, 32) > 0}, r"^draw\.changed holds 4 masks, the batch needs 1 or 6$"),
        ({"kept": torch.ones(3)}, r"^draw\.kept must be a float tensor \(6,\), got .*\(3,\)$"),
        ({"kept": 0.5}, r"^draw\.kept must be a float tensor \(6,\), got 0\.5$"),
        ({"kept": torch.full((6,), NAN)}, r"^draw\.kept must be a number in \[0, 1\], got nan$"),
        ({"kept": torch.full((6,), 1.5)}, r"^draw\.kept must be a number in \[0, 1\], got 1\.5$"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_replayed_puzzle_that_does_not_fit_names_the_field(
    wrong: dict[str, object], message: str, net: nn.Module
) -> None:
    mix = puzzle_mix(net)
    x, y = batch()
    mix(x, y)
    draw, puzzle = drawn(mix)
    with pytest.raises((TypeError, ValueError), match=message):
        mix(x, y, draw=replace(draw, change=replace(puzzle, **wrong)))  # type: ignore[arg-type]
    mix(x, y, draw=draw)


def test_resume_is_exact(net: nn.Module) -> None:
    x, y = batch()
    mix = puzzle_mix(net, seed=3)
    mix(x, y)
    state = mix.state_dict()
    expected = [mix(x, y) for _ in range(3)]
    mix.detach()
    other = puzzle_mix(net, seed=0)
    other.load_state_dict(state)
    torch.rand(7)
    for (mixed, target), (mixed_then, target_then) in zip((other(x, y) for _ in range(3)), expected):
        assert torch.equal(mixed, mixed_then)
        assert torch.equal(target, target_then)


# Batches and layouts


def test_a_sample_that_is_its_own_partner_is_not_altered(net: nn.Module) -> None:
    mix = puzzle_mix(net, t_eps=0.01)
    x, y = batch(3)
    seen = 0
    for _ in range(12):
        mixed, target = mix(x, y)
        draw, _ = drawn(mix)
        for i, j in enumerate(draw.partner.tolist()):
            if i == j:
                seen += 1
                assert torch.equal(mixed[i], x[i])
                assert target[i, y[i]] == 1.0
                assert draw.kept[i] == 1.0
    assert seen > 3


def test_batch_of_one_is_not_altered(net: nn.Module) -> None:
    x, y = batch(1)
    mixed, target = puzzle_mix(net)(x, y)
    assert torch.equal(mixed, x)
    assert torch.equal(target, F.one_hot(y, NUM_CLASSES).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtype_and_memory_format_are_kept(dtype: torch.dtype, net: nn.Module) -> None:
    x, y = batch()
    for model in (net, SmallNet().train().to(dtype)):  # images in half precision for a model in full, and both in half
        plain, last = (puzzle_mix(model, seed=1) for _ in range(2))
        images = x.to(dtype)
        mixed, target = plain(images, y)
        mixed_last, _ = last(images.contiguous(memory_format=torch.channels_last), y)
        assert mixed.dtype == mixed_last.dtype == dtype
        assert target.dtype is torch.float32
        assert mixed.is_contiguous()
        assert mixed_last.is_contiguous(memory_format=torch.channels_last)
        assert not mixed_last.is_contiguous()
        draw, puzzle = drawn(last)
        sources = {"own_source": puzzle.own_source, "partner_source": puzzle.partner_source}
        assert torch.equal(mixed_last, join_images(images, draw.partner, puzzle.mask, **sources))


def test_compiled_model_trains(make_model: MakeModel) -> None:
    model = make_model()
    mix = puzzle_mix(model)
    compiled = torch.compile(model, backend="eager")
    x, y = batch(4, (64, 64))
    for _ in range(2):
        mixed, target = mix(x, y)
        mix.loss(compiled(mixed), target).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_under_ddp_gradients_are_reduced_once(net: nn.Module, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        mix = puzzle_mix(net)
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
    settings = create_mixer("puzzle_mix", net).method.settings()
    paper = {"alpha": 1.0, "block_num": [2, 4, 8, 16], "n_labels": 3, "beta": 1.2, "gamma": 0.5, "eta": 0.2}
    assert paper.items() <= settings.items()
    assert settings["transport"] is True
    assert settings["t_eps"] == 0.8
    assert settings["prob"] == 1.0
    assert settings["objective"] == "l2"
    assert create_mixer("puzzle_mix", net, block_num=4).method == PuzzleMix(block_num=(4,))


@pytest.mark.parametrize(("benchmark", "alpha"), [("tiny_imagenet_resnet101", 0.2), ("cifar10_preactresnet18", 1.0)])
def test_recipe_has_the_papers_alpha(benchmark: str, alpha: float, net: nn.Module) -> None:
    recipe = load_recipe(f"{benchmark}_puzzle_mix")
    assert recipe.mix == "puzzle_mix"
    assert recipe.mix_settings["alpha"] == alpha
    mix = create_mixer(recipe.mix, net, **recipe.mix_settings)
    assert mix.method.settings()["block_num"] == [2, 4, 8, 16]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"alpha": 0}, "alpha must be a number above 0, got 0"),
        ({"block_num": []}, "block_num is empty: give at least one value"),
        ({"block_num": [2, 0]}, "block_num must be a whole number of at least 1, got 0"),
        ({"block_num": "2"}, "block_num must be a whole number of at least 1, got '2'"),
        ({"n_labels": 1}, r"n_labels must be a whole number in \[2, 32\], got 1"),
        ({"beta": -1}, "beta must be a number of at least 0, got -1"),
        ({"gamma": 1.5}, r"gamma must be a number in \[0, 1\], got 1.5"),
        ({"eta": -0.1}, "eta must be a number of at least 0, got -0.1"),
        ({"t_eps": 0}, "t_eps must be a number above 0, got 0"),
        ({"transport": 1}, "transport must be true or false, got 1"),
    ],
)
def test_bad_settings_state_what_is_allowed(setting: dict[str, object], message: str, net: nn.Module) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{message}$"):
        puzzle_mix(net, **setting)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "side"), [("piece", 16), ("block", 4)])
def test_blocks_move_whole_or_in_pieces(size: str, side: int) -> None:
    """Puzzle Mix's Tiny-ImageNet command moves blocks of the size of the mask's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 5))
    mix = create_mixer("puzzle_mix", model, num_classes=5, block_num=[4], transport_size=size)
    mix(torch.randn(4, 3, 64, 64), torch.arange(4))
    assert mix.draw is not None
    change = mix.draw.change
    assert change.mask.shape == (4, 4, 4)  # type: ignore[union-attr]
    assert change.own_source.shape == (4, side, side)  # type: ignore[union-attr]
