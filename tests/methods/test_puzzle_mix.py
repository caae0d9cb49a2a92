"""Puzzle Mix in use: the mixture and its targets, what a call leaves untouched, replay, resume and layouts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from timm_patchup import Draw, create_mixer, list_methods
from timm_patchup.methods.puzzle_images import join_images, move_pieces, to_pixels, unit_range
from timm_patchup.methods.puzzle_mix import PuzzleDraw, PuzzleMix
from timm_patchup.recipe import load_recipe

from .puzzle_oracle import SmallNet

MakeModel = Callable[..., nn.Module]
SIZES = [(16, 16), (21, 26), (20, 14)]


@pytest.fixture
def net() -> nn.Module:
    """A net with BatchNorm and dropout, in train mode."""
    return SmallNet().train()


def batch(count: int = 6, size: tuple[int, int] = (32, 32)) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, *size), torch.arange(count) % NUM_CLASSES


def drawn(mix: PuzzleMix) -> PuzzleDraw:
    assert isinstance(mix.draw, PuzzleDraw)
    return mix.draw


def slow_mixture(x: Tensor, draw: PuzzleDraw) -> Tensor:
    """The mixture pixel by pixel. A piece that is shorter than its place repeats its last row or column."""
    height, width = x.shape[2:]
    rows, columns = draw.mask.shape[1:]
    mixed = torch.empty_like(x)

    def moved(image: Tensor, source: Tensor | None, r: int, c: int) -> Tensor:
        if source is None:
            return image[:, r, c]
        pieces = source.shape
        place = r * pieces[0] // height, c * pieces[1] // width
        piece = divmod(int(source[place]), pieces[1])
        pixel = []
        for axis, (here, size) in enumerate(((r, height), (c, width))):
            there, taken = ([p for p in range(size) if p * pieces[axis] // size == n[axis]] for n in (place, piece))
            pixel.append(taken[min(here - there[0], len(taken) - 1)])
        return image[:, pixel[0], pixel[1]]

    for i, j in enumerate(draw.partner.tolist()):
        own_source = None if draw.own_source is None else draw.own_source[i]
        partner_source = None if draw.partner_source is None else draw.partner_source[i]
        for r in range(height):
            for c in range(width):
                weight = float(draw.mask[i, r * rows // height, c * columns // width])
                own, other = moved(x[i], own_source, r, c), moved(x[j], partner_source, r, c)
                mixed[i, :, r, c] = weight * own + (1 - weight) * other
    return mixed


# What is mixed


@pytest.mark.parametrize("transport", [True, False])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("block_num", [2, 4, 8, 16])
def test_images_and_targets_are_those_of_the_mask(
    block_num: int, size: tuple[int, int], transport: bool, net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = batch(4, size)
    before, spots = x.clone(), torch.rand(4, *size) ** 8
    monkeypatch.setattr(PuzzleMix, "saliency", lambda *_: spots)
    # An even share and nearly free moves, so that there is something to see.
    mix = PuzzleMix(net, block_num=block_num, alpha=1e3, transport=transport, t_eps=0.02)
    mixed, target = mix(x, y)
    draw = drawn(mix)
    assert torch.equal(x, before)
    assert draw.site == "input"
    assert draw.mask.shape == (4, min(block_num, size[0]), min(block_num, size[1]))
    assert set(draw.mask.unique().tolist()) <= {0.0, 0.5, 1.0}
    torch.testing.assert_close(mixed, slow_mixture(x, draw), rtol=1e-5, atol=1e-6)
    if block_num == 16:
        assert len(draw.mask.unique()) == 3
        for source in (draw.own_source, draw.partner_source):
            assert (source is not None) == transport
            if source is not None:
                assert bool((source != torch.arange(source[0].numel()).view(source.shape[1:])).any())

    # The own share of the target is the mean weight of the own pixels.
    weights = torch.tensor([
        [[draw.mask[i, r * draw.mask.shape[1] // size[0], c * draw.mask.shape[2] // size[1]] for c in range(size[1])]
         for r in range(size[0])]
        for i in range(4)
    ])  # fmt: skip
    share = weights.mean((1, 2))
    torch.testing.assert_close(draw.kept, share)
    assert draw.lam == 0.0
    assert draw.changed is not None
    assert torch.equal(draw.changed, (weights < 1.0)[:, None])
    own = F.one_hot(y, NUM_CLASSES).float()
    torch.testing.assert_close(target, share[:, None] * own + (1 - share[:, None]) * own[draw.partner])
    torch.testing.assert_close(target.sum(1), torch.ones(4))


@pytest.mark.parametrize("size", SIZES)
def test_any_pieces_are_joined_as_the_draw_says(size: tuple[int, int], net: nn.Module) -> None:
    x, y = batch(3, size)
    mask = torch.randint(3, (3, 4, 3)) / 2
    sources = {name: torch.randint(48, (3, 8, 6)) for name in ("own_source", "partner_source")}
    partner = torch.tensor([2, 0, 1])
    changed = torch.ones(3, 1, *size).bool()
    draw = PuzzleDraw("input", partner, 0.0, changed, torch.ones(3), prior=0.5, mask=mask, **sources)
    torch.testing.assert_close(PuzzleMix(net)(x, y, draw=draw)[0], slow_mixture(x, draw), rtol=1e-5, atol=1e-6)
    small = x[:, :1].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: join_images(x, partner, mask, **sources), (small,), fast_mode=True)


def test_masks_follow_the_saliency(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two images, one salient on the left, the other on the right, both halves are seen."""
    x, y = batch(2)
    saliency = torch.full((2, 32, 32), 1e-3)
    saliency[0, :, :16] = saliency[1, :, 16:] = 1.0
    monkeypatch.setattr(PuzzleMix, "saliency", lambda *_: saliency)
    mix = PuzzleMix(net, block_num=4, alpha=1e6)
    while not torch.equal(mix.draw.partner if mix.draw else y, torch.tensor([1, 0])):
        mixed, target = mix(x, y)
    assert drawn(mix).prior == pytest.approx(0.5, abs=0.01)
    for image, left, right in ((mixed[0], 0, 1), (mixed[1], 0, 1)):
        assert torch.equal(image[:, :, :16], x[left, :, :, :16])
        assert torch.equal(image[:, :, 16:], x[right, :, :, 16:])
    assert target[:, :2].tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_a_salient_block_moves_to_where_it_is_seen(net: nn.Module) -> None:
    x, _ = batch(2, (16, 16))
    source = torch.arange(16).view(1, 4, 4).repeat(2, 1, 1)
    source[0, 1, 2] = 4  # the piece in row 1, column 0
    moved = move_pieces(x, source)
    assert torch.equal(moved[0, :, 4:8, 8:12], x[0, :, 4:8, 0:4])
    assert torch.equal(moved[1], x[1])
    assert int((moved != x).sum()) == 3 * 16


def test_saliency_is_the_gradient_of_a_linear_classifier() -> None:
    class Linear(nn.Module):
        num_classes = NUM_CLASSES

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3 * 5 * 4, NUM_CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.flatten(1))

    model = Linear().train()
    x, y = batch(3, (5, 4))
    own = F.one_hot(y, NUM_CLASSES).float()
    with torch.no_grad():
        grad = ((model(x).softmax(1) - own) @ model.head.weight).view(3, 3, 5, 4)
    expected = (grad**2).mean(1).sqrt()
    torch.testing.assert_close(PuzzleMix(model).saliency(x, own), expected)
    with torch.no_grad():
        torch.testing.assert_close(PuzzleMix(model).saliency(x, own), expected)


def test_colours_are_stretched_channel_by_channel() -> None:
    x = torch.rand(5, 2, 8, 8) * torch.tensor([3.0, 0.5])[:, None, None] - 1.0
    x[:, 1, 0, 0] = -1.0
    unit = unit_range(x)
    for channel in (0, 1):
        assert unit[:, channel].min() == 0.0
        assert float(unit[:, channel].max()) == pytest.approx(1.0)
    assert torch.equal(unit_range(torch.full((2, 1, 4, 4), 7.0)), torch.zeros(2, 1, 4, 4))


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


def test_grid_is_never_finer_than_the_pixels() -> None:
    assert to_pixels(torch.arange(6).view(1, 2, 3), 2, 3).tolist() == [[[0, 1, 2], [3, 4, 5]]]
    model = SmallNet().train()
    mix = PuzzleMix(model, block_num=16)
    x, y = batch(4, (12, 9))
    mixed, _ = mix(x, y)
    assert drawn(mix).mask.shape == (4, 12, 9)
    torch.testing.assert_close(mixed, slow_mixture(x, drawn(mix)), rtol=1e-5, atol=1e-6)


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
