"""A draw that contradicts itself, is never applied or meets another batch raises; the mixer still works afterwards."""

import copy
import re
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn

from tests.support.expectations import MakeModel, record
from timm_patchup import Draw, PatchUp
from timm_patchup.core.draw import Erase, Mix
from timm_patchup.errors import UserError
from timm_patchup.methods.puzzle_mix import Puzzle

NAN = float("nan")


# Draws that are replayed


MASK = torch.ones(1, 32, 16, 12, dtype=torch.bool)
PARTNER = torch.tensor([1, 2, 3, 0])


def with_change(draw: Draw, **wrong: object) -> Draw:
    """Return a draw whose change differs."""
    return replace(draw, change=replace(draw.change, **wrong))  # type: ignore[type-var, arg-type]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"lam": NAN}, ValueError, r"^draw.lam must be a number in \[0, 1\], got nan$"),
        ({"lam": -0.5}, ValueError, r"^draw.lam must be a number in \[0, 1\], got -0.5$"),
        ({"lam": "0.5"}, TypeError, r"^draw.lam must be a number in \[0, 1\], got '0.5'$"),
        ({"partner": torch.tensor([0, 0, 1, 2])}, ValueError, r"^draw.partner must be a permutation .*\[0, 0, 1, 2\]$"),
        ({"partner": torch.tensor([1, 2, 3, 4])}, ValueError, r"^draw.partner must be a permutation .*\[1, 2, 3, 4\]$"),
        (
            {"partner": torch.tensor([-1, 0, 1, 2])},
            ValueError,
            r"^draw.partner must be a permutation .*\[-1, 0, 1, 2\]$",
        ),
        ({"partner": torch.arange(3)}, ValueError, r"^draw.partner has shape \(3,\), the batch needs \(4,\)$"),
        ({"changed": None}, TypeError, "^draw.changed must be a bool mask of features, got None$"),
        ({"changed": MASK.expand(3, -1, -1, -1)}, ValueError, "^draw.changed holds 3 masks, the batch needs 1 or 4$"),
        ({"site": "stage"}, ValueError, "^unknown draw.site 'stage': choose from stage1; did you mean stage1"),
    ],
    ids=[
        "nan lam",
        "lam below 0",
        "text lam",
        "twice",
        "from 1",
        "negative",
        "too short",
        "no mask",
        "three masks",
        "unknown site",
    ],
)
def test_replayed_draw_that_contradicts_itself(
    wrong: dict[str, object], error: type[Exception], message: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, _ = mix(images, labels)
    model(x)
    assert mix.draw is not None
    draw = mix.draw
    of_draw = {"site", "partner"} & set(wrong)
    with pytest.raises(error, match=message):
        mix(images, labels, draw=replace(draw, **wrong) if of_draw else with_change(draw, **wrong))  # type: ignore[arg-type]
    x, target = mix(images, labels, draw=draw)  # fit for use afterwards
    mix.loss(model(x), target)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"partner": PARTNER.float()}, r"^draw.partner must be an int64 tensor \(4,\), got tensor"),
        ({"partner": [1, 2, 3, 0]}, r"^draw.partner must be an int64 tensor \(4,\), got \[1, 2, 3, 0\]$"),
        ({"change": Mix(MASK.float())}, r"^draw.changed must be a bool mask of features, got torch.float32$"),
        ({"change": Mix(MASK[0, 0, 0, 0].item())}, r"^draw.changed must be a bool mask of features, got True$"),
        ({"change": Erase(MASK, 1.0)}, r"^draw.change.scale must be a 0-d tensor, got 1.0$"),
        ({"change": Erase(MASK, torch.ones(4))}, r"^draw.change.scale must be a 0-d tensor, got tensor"),
        ({"change": Erase(MASK, torch.tensor(NAN))}, r"^draw.change.scale must be a number of at least 0, got nan$"),
        ({"site": None}, r"^draw.site and draw.change must both be None or neither, got site None$"),
        ({"change": None}, r"^draw.site and draw.change must both be None or neither, got site 'stage1'$"),
    ],
    ids=[
        "float partner",
        "list partner",
        "float mask",
        "number mask",
        "number scale",
        "scale per sample",
        "nan scale",
        "change without site",
        "site without change",
    ],
)
def test_replayed_draw_of_wrong_types_names_the_field(
    wrong: dict[str, object], message: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    # A change without a site would mix the targets and leave every feature as it is.
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    draw = Draw("stage1", PARTNER, Mix(MASK))
    with pytest.raises((ValueError, TypeError), match=message):
        mix(images, labels, draw=replace(draw, **wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("site", ["input", "stage1"])
@pytest.mark.parametrize("erases", [False, True])
def test_draw_made_for_images_of_another_size(site: str, erases: bool, model: nn.Module, labels: Tensor) -> None:
    """Fitted to the new size, its blocks would have another size and place, and p_u would be another."""
    mix = PatchUp(model, prob=1.0, sites=[site])
    small, large = torch.randn(4, 3, 64, 48), torch.randn(4, 3, 96, 64)
    x, _ = mix(small, labels)
    model(x)
    assert mix.draw is not None
    assert mix.draw.changed is not None
    draw = replace(mix.draw, change=Erase(mix.draw.changed, torch.ones(()))) if erases else mix.draw
    given, needed = ("(1, 64, 48)", "(3, 96, 64)") if site == "input" else ("(32, 16, 12)", "(32, 24, 16)")
    message = (
        f"draw.changed has masks of {given}, but site {site!r} has features of {needed} (C, H, W) for these images"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}: replay a draw with images of the size"):
        mix(large, labels, draw=draw)
    mix(small, labels, draw=draw)


@pytest.mark.parametrize("shape", [(1, 32, 16), (1, 31, 16, 12), (1, 32, 16, 24), (4, 1, 8, 6)])
def test_masks_of_another_shape(shape: tuple[int, ...], model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    with pytest.raises(ValueError, match=r"^draw.changed has masks of \(.*\), but site 'stage1' has features of"):
        mix(images, labels, draw=Draw("stage1", PARTNER, Mix(torch.ones(shape, dtype=torch.bool))))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 16, 12), (4, 32, 16, 12), (1, 32, 1, 12)])
def test_masks_that_broadcast_are_replayed(
    shape: tuple[int, ...], model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, target = mix(images, labels, draw=Draw("stage1", PARTNER, Mix(torch.ones(shape, dtype=torch.bool))))
    mix.loss(model(x), target).backward()
    assert mix.draw is not None
    assert mix.draw.kept.max() == 0.0


def test_share_of_a_draw_matches_its_mask() -> None:
    """What the first release had to check: a share that contradicts the mask cannot be given."""
    half = torch.arange(8).reshape(1, 1, 2, 4) < 4
    per_sample = torch.stack([torch.arange(8).reshape(1, 2, 4) < n for n in (0, 2, 8)])
    for change in (Mix(half), Mix(half, 0.25), Erase(half, torch.ones(()))):
        assert Draw("input", PARTNER, change).kept.item() == 0.5
    assert Draw("input", torch.arange(3), Mix(per_sample)).kept.tolist() == [1.0, 0.75, 0.0]
    nothing = Draw(None, PARTNER)
    assert (nothing.kept.item(), nothing.lam, nothing.changed, nothing.mixes) == (1.0, 1.0, None, False)
    for name in ("kept", "lam", "changed"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            replace(nothing, **{name: 0.5})
    with pytest.raises(TypeError, match="unexpected keyword argument 'kept'"):
        replace(Mix(half), kept=0.5)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Invert:
    """A change of a user's own, which is neither a Mix nor an Erase."""

    changed: Tensor
    lam: float = 0.0
    mixes: bool = False

    @property
    def kept(self) -> Tensor:
        return torch.zeros(())

    def apply(self, x: Tensor, partner: Tensor) -> Tensor:
        return -x

    def check(self, batch_size: int) -> None:
        pass


def test_other_changes_act_at_every_site(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["input", "stage1"])
    x, _ = mix(images, labels, draw=Draw("input", PARTNER, Invert(MASK)))
    assert torch.equal(x, -images)
    seen: list[Tensor] = []
    record(model.layer1[-1], seen)
    x, target = mix(images, labels, draw=Draw("stage1", PARTNER, Invert(MASK)))
    mix.loss(model(x), target)
    with mix.paused():
        model(x)
    assert torch.equal(seen[0], -seen[1])
    # Made for images, its masks do not fit the features.
    puzzle = Puzzle(0.5, torch.ones(4, 2, 2), None, None, torch.ones(4, 1, 64, 48, dtype=torch.bool), torch.ones(4))
    with pytest.raises(UserError, match=r"^draw.changed has masks of"):
        mix(images, labels, draw=Draw("stage1", PARTNER, puzzle))


# Draws that were not applied, or to something else


NEVER = r"^the draw at site 'stage1' was never applied: no training forward pass of the model reached that site"


def assert_works(mix: PatchUp, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(mix.model)
    x, target = mix(images, labels)
    output = mix.model(x)
    assert not torch.equal(output, clean(images))
    torch.testing.assert_close(mix.loss(output, target), 2 * nn.functional.cross_entropy(output, target))


def test_draw_that_nothing_applied_raises_at_the_loss(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, target = mix(images, labels)
    output = copy.deepcopy(model)(x)  # a copy: not the model that is mixed
    with pytest.raises(RuntimeError, match=NEVER):
        mix.loss(output, target)
    assert_works(mix, images, labels)


def test_draw_that_nothing_applied_raises_at_the_next_batch(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, _ = mix(images, labels)
    model.eval()
    model(x)
    model.train()
    with pytest.raises(RuntimeError, match=NEVER):
        mix(images, labels)
    assert_works(mix, images, labels)


@pytest.mark.parametrize("at", ["loss", "mix"])
def test_draw_that_nothing_applied_raises_under_paused(
    at: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, target = mix(images, labels)
    # The message names the site, and the draw that was given up is not armed again when the pause ends.
    with mix.paused():
        output = model(x)
        call = partial(mix.loss, output, target) if at == "loss" else partial(mix, images, labels)
        with pytest.raises(RuntimeError, match=NEVER):
            call()
    assert torch.equal(model(images), clean(images))
    assert_works(mix, images, labels)


def test_module_of_a_site_that_was_replaced(make_model: MakeModel, images: Tensor, labels: Tensor) -> None:
    model = make_model("test_efficientnet")
    mix = PatchUp(model, prob=1.0, sites=["stem"])  # bn1
    x, target = mix(images, labels)
    model = convert_sync_batchnorm(model).eval()  # which trains on accelerators only
    replaced = r"^the draw at site 'stem' was never applied: its module was replaced.* Make the mixer after that$"
    with pytest.raises(RuntimeError, match=replaced):
        mix.loss(model(x), target)


def test_draw_that_nothing_applied_raises_when_compiled(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    torch._dynamo.reset()
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    compiled = torch.compile(model, backend="eager")
    x, target = mix(images, labels)
    mix.loss(compiled(x), target)  # the graph with this site is known from here on
    x, target = mix(images, labels)
    with mix.paused():
        output = compiled(x)
    with pytest.raises(RuntimeError, match=NEVER):
        mix.loss(output, target)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_pass_that_raised_does_not_stand_in_the_way_of_the_next_batch(
    error: type[BaseException], model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    """As when a batch is too large and a loop goes on with a smaller one, or a notebook is interrupted."""
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    mix.check_images(images)

    def fail(module: nn.Module, args: object) -> None:
        raise error

    handle = model.get_submodule("act1").register_forward_pre_hook(fail)
    x, target = mix(images, labels)
    with pytest.raises(error):
        model(x)
    handle.remove()
    assert_works(mix, images[:3], labels[:3])
    # What another model returned instead has no loss.
    handle = model.get_submodule("act1").register_forward_pre_hook(fail)
    x, target = mix(images, labels)
    with pytest.raises(error):
        model(x)
    handle.remove()
    with pytest.raises(RuntimeError, match=NEVER):
        mix.loss(copy.deepcopy(model)(x), target)


def test_batch_of_another_size_than_drawn(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, _ = mix(images, labels)
    features = r"^features at site 'stage1' have shape \({}\), but the draw was made for a batch of 4 with "
    with pytest.raises(RuntimeError, match=features.format("3, 32, 16, 12") + r".*mix\.paused\(\)"):
        model(x[:3])
    with pytest.raises(RuntimeError, match=features.format("4, 32, 8, 12") + r".*mix\.paused\(\)"):
        model(x[:, :, :32])
    model(x)
    assert_works(mix, images, labels)


def test_a_site_that_gives_another_number_of_tensors_in_training() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return (x, x) if self.training else (x,)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = Both()

        def forward(self, x: Tensor) -> Tensor:
            return self.both(x)[0].mean((2, 3))

    model = Net().train()
    mix = PatchUp(model, prob=1.0, sites=["both"], block_size=3, num_classes=3)
    x, _ = mix(torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(RuntimeError, match=r"^site 'both' gives 2 tensors in training, but 1 in eval mode: leave it"):
        model(x)
