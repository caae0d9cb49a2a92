"""A draw that contradicts itself, that nothing applied or that meets another batch raises; then the mixer works on."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from timm_patchup import Draw, PatchUp

NAN = float("nan")


# Draws that are replayed


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lam": NAN}, ValueError, r"^draw.lam must lie in \[0, 1\], got nan$"),
        ({"lam": -0.5}, ValueError, r"^draw.lam must lie in \[0, 1\], got -0.5$"),
        ({"lam": "0.5"}, TypeError, r"^draw.lam must be a number in \[0, 1\], got '0.5'$"),
        ({"partner": torch.tensor([0, 0, 1, 2])}, ValueError, r"^draw.partner must be a permutation .*\[0, 0, 1, 2\]$"),
        ({"partner": torch.tensor([1, 2, 3, 4])}, ValueError, r"^draw.partner must be a permutation .*\[1, 2, 3, 4\]$"),
        (
            {"partner": torch.tensor([-1, 0, 1, 2])},
            ValueError,
            r"^draw.partner must be a permutation .*\[-1, 0, 1, 2\]$",
        ),
        ({"partner": torch.arange(3)}, ValueError, r"^draw.partner has shape \(3,\), the batch needs \(4,\)$"),
        ({"kept": torch.tensor(NAN)}, ValueError, r"^draw.kept must lie in \[0, 1\], got nan$"),
        ({"kept": torch.tensor(1.5)}, ValueError, r"^draw.kept must lie in \[0, 1\], got 1.5$"),
        ({"changed": None}, ValueError, "^draw.changed must be a bool mask when site is 'stage1', got None$"),
        ({"changed": torch.ones(3, 32, 16, 12, dtype=torch.bool)}, ValueError, "^draw.changed holds 3 masks.* 1 or 4$"),
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
        "nan kept",
        "kept above 1",
        "no mask",
        "three masks",
        "unknown site",
    ],
)
def test_replayed_draw_that_contradicts_itself(
    change: dict[str, object], error: type[Exception], message: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, _ = mix(images, labels)
    model(x)
    assert mix.draw is not None
    draw = mix.draw
    with pytest.raises(error, match=message):
        mix(images, labels, draw=replace(draw, **change))  # type: ignore[arg-type]
    x, target = mix(images, labels, draw=draw)  # fit for use afterwards
    mix.loss(model(x), target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partner": torch.tensor([1.0, 2.0, 3.0, 0.0])}, r"^draw.partner must be an int64 tensor \(4,\), got tensor"),
        ({"partner": [1, 2, 3, 0]}, r"^draw.partner must be an int64 tensor \(4,\), got \[1, 2, 3, 0\]$"),
        ({"kept": torch.rand(3)}, r"^draw.kept must be a tensor, 0-d or \(4,\), got tensor"),
        ({"kept": 0.5}, r"^draw.kept must be a tensor, 0-d or \(4,\), got 0.5$"),
        ({"changed": torch.ones(1, 32, 16, 12)}, r"^draw.changed must be a bool mask .*float32[^\n]*$"),
        ({"site": None}, r"^draw.changed must be None when site is None, got a mask \(1, 32, 16, 12\)$"),
    ],
    ids=["float partner", "list partner", "kept too short", "number kept", "float mask", "mask without site"],
)
def test_replayed_draw_of_wrong_types_names_the_field(
    change: dict[str, object], message: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    # The last: a mask without a site would mix the targets and leave every feature as it is.
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    draw = Draw("stage1", torch.tensor([1, 2, 3, 0]), 0.0, torch.ones(1, 32, 16, 12) > 0, torch.tensor(0.0))
    with pytest.raises((ValueError, TypeError), match=message):
        mix(images, labels, draw=replace(draw, **change))  # type: ignore[arg-type]


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
