"""Every method against timm's own function on the same draw, or against a loop written from the method's paper."""

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm.data
import timm.data.mixup
import timm.data.random_erasing
import torch
from timm.layers.drop import drop_block_2d
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES, within
from tests.support.expectations import record
from timm_patchup import Draw, Mixer, create_mixer
from timm_patchup.core import sampling

SITES = ["input", "stem", "stage1", "stage2"]
MODULES = {"stem": "act1", "stage1": "layer1", "stage2": "layer2"}


class Spy:
    """Stands in for a function and keeps what it was called with and what it returned."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.arguments, self.results = function, [], []  # type: ignore[var-annotated]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.arguments.append(args)
        self.results.append(self.function(*args, **kwargs))
        return self.results[-1]


def last(mix: Mixer) -> Draw:
    assert mix.draw is not None
    return mix.draw


def with_reversed_partner(mix: Mixer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mix again on the last draw, but with timm's partner: the batch reversed."""
    drawn = last(mix)
    partner = torch.arange(len(x) - 1, -1, -1)
    mix._arming.disarm()
    return mix(x, y, draw=replace(drawn, partner=partner))


def timm_mixup(lam: float, center: tuple[int, int], *, cut: bool, smoothing: float, monkeypatch: Any) -> Any:
    """Make timm's Mixup draw this lam and, for CutMix, this centre of the rectangle."""
    centers: Iterator[int] = iter(center)
    monkeypatch.setattr(np.random, "beta", lambda *args: lam)
    monkeypatch.setattr(np.random, "randint", lambda *args, **kwargs: next(centers))
    alphas = {"mixup_alpha": 0.0, "cutmix_alpha": 1.0} if cut else {"mixup_alpha": 1.0}
    return timm.data.Mixup(**alphas, label_smoothing=smoothing, num_classes=NUM_CLASSES)


def features_at(model: nn.Module, site: str, x: Tensor) -> Tensor:
    """Return the features at a site of a model that nothing alters."""
    seen: list[Tensor] = []
    clean = copy.deepcopy(model)
    record(clean.get_submodule(MODULES[site]), seen)
    clean(x)
    return seen[0]


# Mixing at the input


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mixup_is_timms(
    smoothing: float, model: nn.Module, images: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(sampling.beta)
    monkeypatch.setattr(sampling, "beta", spy)
    mix = create_mixer("mixup", model, alpha=0.7, label_smoothing=smoothing)
    for _ in range(8):
        mix(images, labels)
        x, target = with_reversed_partner(mix, images, labels)
        lam = spy.results[-1]
        assert (last(mix).lam, spy.arguments[-1][0]) == (lam, 0.7)
        theirs = timm_mixup(lam, (0, 0), cut=False, smoothing=smoothing, monkeypatch=monkeypatch)
        expected, expected_target = theirs(images.clone(), labels)
        torch.testing.assert_close(x, expected)
        torch.testing.assert_close(target, expected_target)
    assert len(set(spy.results)) == 8


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cutmix_is_timms(
    smoothing: float, model: nn.Module, images: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lams, centers = Spy(sampling.beta), Spy(sampling.integer)
    monkeypatch.setattr(sampling, "beta", lams)
    mix = create_mixer("cutmix", model, alpha=0.7, label_smoothing=smoothing)
    clipped = 0
    for _ in range(16):
        monkeypatch.setattr(sampling, "integer", centers)
        mix(images, labels)
        x, target = with_reversed_partner(mix, images, labels)
        lam, middle = lams.results[-1], tuple(centers.results[-2:])
        assert lams.arguments[-1][0] == 0.7
        assert [arguments[0] for arguments in centers.arguments[-2:]] == [64, 48]
        theirs = timm_mixup(lam, middle, cut=True, smoothing=smoothing, monkeypatch=monkeypatch)
        expected, expected_target = theirs(images.clone(), labels)
        assert torch.equal(x, expected)
        torch.testing.assert_close(target, expected_target)
        clipped += abs(last(mix).kept.item() - lam) > 0.05
    assert clipped > 2, "some rectangles reach over the border"


# Erasing


def test_cutout_is_the_loop_of_its_paper(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """A square per image, centred uniformly and clipped at the border."""
    length, middles = 20, set()
    mix = create_mixer("cutout", model, length=length)
    for _ in range(200):
        x, _ = mix(images, labels)
        holes = last(mix).changed
        assert holes is not None
        assert len({tuple(torch.nonzero(hole[0]).flatten().tolist()) for hole in holes}) > 1
        for hole, image, source in zip(holes[:, 0].tolist(), x, images):
            middle = _find_middle(hole, 64, 48, length)
            assert middle is not None, "no square of this side gives this hole"
            middles.add(middle)
            expected = source.clone()
            expected[:, torch.tensor(hole)] = 0.0
            assert torch.equal(image, expected)
    rows, columns = zip(*middles)
    # If a square is clipped on one side, its far edge still gives the centre: all of them come up.
    assert set(columns) == set(range(48))
    assert len(set(rows)) > 60


def _find_middle(hole: list[list[bool]], height: int, width: int, length: int) -> tuple[int, int] | None:
    covered_rows = [any(row) for row in hole]
    covered_columns = [any(hole[row][column] for row in range(height)) for column in range(width)]
    found = []
    for covered, size in ((covered_rows, height), (covered_columns, width)):
        fitting = [
            middle
            for middle in range(size)
            if covered == [middle - length // 2 <= place < middle - length // 2 + length for place in range(size)]
        ]
        if len(fitting) != 1:
            return None
        found.append(fitting[0])
    full = all(hole[r][c] == (covered_rows[r] and covered_columns[c]) for r in range(height) for c in range(width))
    return (found[0], found[1]) if full else None


@pytest.mark.parametrize("length", [7, 16])
def test_cutout_inside_the_image_is_timms_random_erasing(
    length: int, model: nn.Module, images: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = length * length / (64 * 48)
    erase = timm.data.random_erasing.RandomErasing(
        probability=1.0, min_area=side, max_area=side, min_aspect=1.0, max_aspect=1.0, mode="const", device="cpu"
    )
    mix = create_mixer("cutout", model, length=length)
    compared = 0
    for _ in range(20):
        x, _ = mix(images, labels)
        holes = last(mix).changed
        assert holes is not None
        for hole, image, source in zip(holes[:, 0], x, images):
            if hole.sum() == length * length:
                corner = iter(torch.nonzero(hole)[0].tolist())
                with monkeypatch.context() as patch:
                    patch.setattr(random, "randint", lambda low, high, corner=corner: next(corner))
                    assert torch.equal(image, erase(source.clone()))
                compared += 1
    assert compared > 20


@pytest.mark.parametrize("block_size", [3, 4, 7])
@pytest.mark.parametrize("site", SITES)
def test_dropblock_is_timms(
    site: str,
    block_size: int,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spy = Spy(sampling.bernoulli)
    monkeypatch.setattr(sampling, "bernoulli", spy)
    mix = create_mixer("dropblock", model, drop_prob=0.3, block_size=block_size, sites=[site], mask="sample")
    before = images if site == "input" else features_at(model, site, images)
    seen: list[Tensor] = [] if site == "input" else _after(model, site)
    altered, _ = mix(images, labels)
    model(altered)
    rates = []

    def bernoulli_(self: Tensor, rate: float) -> Tensor:
        rates.append(rate)
        assert self.shape == spy.results[-1].shape, "a mask per sample"
        return self.copy_(spy.results[-1])

    monkeypatch.setattr(Tensor, "bernoulli_", bernoulli_)
    expected = drop_block_2d(before, 0.3, block_size)
    torch.testing.assert_close(altered if site == "input" else seen[-1], expected, rtol=1e-5, atol=1e-6)
    assert rates == [pytest.approx(spy.arguments[-1][1], rel=1e-9)]
    assert spy.results[-1].any()


def _after(model: nn.Module, site: str) -> list[Tensor]:
    """Record the output of a site after the hooks it already has: the mixer's is on its last child."""
    seen: list[Tensor] = []
    module = model.get_submodule(MODULES[site])
    record(module, seen)
    return seen


def test_dropping_every_feature_gives_zeros_in_float16(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = create_mixer("dropblock", model, drop_prob=0.999, block_size=64, sites=["input"])
    gone = 0
    for _ in range(20):
        x, _ = mix(images.half(), labels)
        assert torch.isfinite(x).all()
        gone += int((x == 0.0).all())
    assert gone > 10


def test_dropblock_keeps_the_mean_and_drops_its_share(model: nn.Module, labels: Tensor) -> None:
    mix = create_mixer("dropblock", model, drop_prob=0.1, block_size=1, sites=["input"])
    images = torch.ones(4, 3, 64, 48)
    dropped = 0.0
    for _ in range(20):
        x, _ = mix(images, labels)
        assert x.mean().item() == pytest.approx(1.0, abs=1e-5)
        dropped += (x[:, 0] == 0.0).sum().item()
    assert within(dropped, 20 * 4 * 64 * 48, 0.1)


# Mixing inside


@pytest.mark.parametrize("site", SITES)
def test_manifold_mixup_is_the_loop_of_its_paper(
    site: str, model: nn.Module, images: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mix_lam(a, b) = lam * a + (1 - lam) * b, of the hidden states and, with the same lam, of the one-hot labels."""
    spy = Spy(sampling.beta)
    monkeypatch.setattr(sampling, "beta", spy)
    mix = create_mixer("manifold_mixup", model, alpha=1.5, sites=[site])
    before = images if site == "input" else features_at(model, site, images)
    seen = [] if site == "input" else _after(model, site)
    x, target = mix(images, labels)
    model(x)
    after = x if site == "input" else seen[-1]
    lam, partner = spy.results[-1], last(mix).partner.tolist()
    assert spy.arguments[-1][0] == 1.5
    assert 0.0 < lam < 1.0
    assert sorted(partner) == [0, 1, 2, 3]
    for i, j in enumerate(partner):
        torch.testing.assert_close(after[i], lam * before[i] + (1.0 - lam) * before[j])
        for label in range(NUM_CLASSES):
            weight = lam * (label == labels[i].item()) + (1.0 - lam) * (label == labels[j].item())
            assert target[i, label].item() == pytest.approx(weight, abs=1e-6)


@pytest.mark.parametrize("site", SITES[1:])
def test_feature_cutmix_is_timms_cutmix_of_the_features(
    site: str, model: nn.Module, images: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lams, centers = Spy(sampling.beta), Spy(sampling.integer)
    monkeypatch.setattr(sampling, "beta", lams)
    monkeypatch.setattr(sampling, "integer", centers)
    mix = create_mixer("feature_cutmix", model, alpha=0.7, sites=[site])
    model.eval()
    before = features_at(model, site, images)
    seen = _after(model, site)
    for module in model.modules():
        module.training = module is model  # the mixer's hooks look at the model, its norms stay as they are
    for _ in range(6):
        mix(images, labels)
        x, target = with_reversed_partner(mix, images, labels)
        assert x is images
        model(x)
        with monkeypatch.context() as patch:
            middle = tuple(centers.results[-2:])
            theirs = timm_mixup(lams.results[-1], middle, cut=True, smoothing=0.0, monkeypatch=patch)
            expected, expected_target = theirs(before.clone(), labels)
        assert lams.arguments[-1][0] == 0.7
        assert torch.equal(seen[-1], expected)
        torch.testing.assert_close(target, expected_target)
