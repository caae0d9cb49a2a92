"""Coverage: which share of a map blocks alter, by the paper's rate or on average gamma; a warning if nearly all."""

import warnings

import pytest
import timm
import torch
from torch import Tensor, nn

from tests.conftest import within
from timm_patchup import PatchUp
from timm_patchup.core.functional import exact_seed_rate, expected_coverage, grow_blocks, seed_rate
from timm_patchup.core.method import DrawContext
from timm_patchup.core.sampling import bernoulli
from timm_patchup.methods.patchup import BlockMethod, HardPatchUp, SoftPatchUp

SIZES = [56, 32, 16, 14, 8, 7, 4]
PLANES = 8000


def context(height: int, width: int, planes: int, seed: int = 0) -> DrawContext:
    """A site with many channels, whose masks are independent."""
    generator = torch.Generator().manual_seed(seed)
    partner, device = torch.tensor([1, 0]), torch.device("cpu")
    return DrawContext("here", ("here",), (2, planes, height, width), partner, generator, device)


def shares(method: BlockMethod, height: int, width: int, planes: int = PLANES) -> Tensor:
    """Draw masks and return the altered share of each plane, float64."""
    return method.blocks(context(height, width, planes))[0].double().mean((1, 2))


@pytest.mark.parametrize("gamma", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("size", SIZES)
def test_exact_coverage_alters_gamma_on_average(size: int, gamma: float) -> None:
    found = shares(HardPatchUp(gamma=gamma, coverage="exact"), size, size)
    assert within(found.sum().item(), PLANES, gamma)  # confidence 1 - 1e-9


@pytest.mark.parametrize(("height", "width", "block_size"), [(14, 14, 7), (8, 12, 7), (5, 30, 4), (4, 4, 7), (9, 9, 1)])
@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_rate_solves_the_mean_over_all_places(height: int, width: int, block_size: int, gamma: float) -> None:
    rate = exact_seed_rate(gamma, block_size, height, width)
    assert 0.0 <= rate <= 1.0
    # By hand: which seeds reach a place is what a single seed there, grown with the block reversed, covers.
    seeds = torch.eye(height * width, dtype=torch.bool).view(-1, height, width)
    counts = grow_blocks(seeds, block_size).sum(dim=0)
    by_hand = (1.0 - (1.0 - rate) ** counts.double()).mean().item()
    assert expected_coverage(rate, block_size, height, width) == pytest.approx(by_hand, abs=1e-12)
    assert by_hand == pytest.approx(gamma, abs=1e-9)


@pytest.mark.parametrize(("size", "about"), [(56, 0.45), (32, 0.49), (16, 0.63), (14, 0.68), (8, 0.99)])
def test_the_papers_rate_alters_what_it_did(size: int, about: float) -> None:
    assert expected_coverage(seed_rate(0.5, 7, size, size), 7, size, size) == pytest.approx(about, abs=0.011)
    found = shares(HardPatchUp(gamma=0.5), size, size)
    assert within(found.sum().item(), PLANES, about, variance=0.25, bound=1.0)
    assert size == 32 or not within(found.sum().item(), PLANES, 0.5)


@pytest.mark.parametrize("method", [HardPatchUp(), SoftPatchUp()])
def test_paper_is_the_default_and_draws_as_before(method: BlockMethod) -> None:
    assert method.coverage == "paper"
    here = context(14, 20, 32)
    generator = torch.Generator().manual_seed(0)
    seeds = bernoulli((1, 32, 14, 20), seed_rate(method.gamma, 7, 14, 20), generator, here.device)
    assert torch.equal(method.blocks(here), grow_blocks(seeds, 7))


# The warning


def train(model: nn.Module, mix: PatchUp, steps: int, size: int = 64) -> list[str]:
    """Train under the default filter; return the texts of our warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(steps):
            x, target = mix(torch.randn(2, 3, size, size), torch.tensor([1, 2]))
            mix.loss(model(x), target).backward()
    return [str(warning.message) for warning in caught if "PatchUp" in str(warning.message)]


def test_warning_names_site_and_remedy_and_appears_once() -> None:
    model = timm.create_model("test_vit", num_classes=10, img_size=64)
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    (text,) = train(model, mix, steps=5)
    assert text == (
        "PatchUp alters nearly all features at site 'stage1': blocks of 7 on a map of 4 x 4. A batch whose features "
        "are all swapped is only a batch in another order: give the site a smaller block_size, leave it out of sites, "
        "or set coverage='exact'"
    )


def test_each_remedy_silences_the_warning() -> None:
    model = timm.create_model("test_vit", num_classes=10, img_size=64)
    for settings in ({"coverage": "exact"}, {"block_size": 2}):
        mix = PatchUp(model, prob=1.0, sites=["stage1"], **settings)
        assert train(model, mix, steps=3) == []
        mix.detach()
    mix = PatchUp(model, prob=1.0, sites=["input"])
    assert train(model, mix, steps=3) == []


def test_whoever_asks_for_all_features_is_not_warned() -> None:
    model = timm.create_model("test_vit", num_classes=10, img_size=64)
    assert train(model, PatchUp(model, prob=1.0, sites=["stage1"], gamma=1.0), steps=2) == []
