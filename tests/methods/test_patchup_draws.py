"""How often PatchUp alters a batch, and how its sites, partners, weights, masks and rectangles are distributed.

Bands of statistics hold with confidence 1 - 1e-9 for a right mixer (Bernstein's inequality); seeds are fixed.
"""

from collections import Counter
from itertools import permutations

import torch

from tests.conftest import within
from tests.support.expectations import drawn, mask_of, tiny
from timm_patchup import PatchUp


@torch.no_grad()
def test_prob_is_the_frequency_of_altered_batches() -> None:
    model = tiny()
    images, labels = torch.randn(2, 3, 5, 5), torch.tensor([0, 1])
    for prob in (0.3, 0.7):
        mix = PatchUp(model, prob=prob, sites=["input", "0"], num_classes=2)
        altered = 0
        for _ in range(1500):
            x, _ = mix(images, labels)
            model(x)
            altered += drawn(mix).site is not None
        assert within(altered, 1500, prob)
        mix.detach()


@torch.no_grad()
def test_sites_partners_and_lam_have_their_distributions() -> None:
    model, trials = tiny(), 2000
    mix = PatchUp(model, mode="soft", prob=1.0, gamma=0.4, block_size=1, sites=["input", "0", "1"], num_classes=3)
    images, labels = torch.randn(3, 3, 5, 5), torch.tensor([0, 1, 2])
    draws = []
    for _ in range(trials):
        x, _ = mix(images, labels)
        model(x)
        draws.append(drawn(mix))
    sites = Counter(draw.site for draw in draws)
    assert set(sites) == {"input", "0", "1"}
    assert all(within(count, trials, 1 / 3) for count in sites.values())
    partners = Counter(tuple(draw.partner.tolist()) for draw in draws)
    assert set(partners) == set(permutations(range(3)))
    assert all(within(count, trials, 1 / 6) for count in partners.values())
    hidden = [draw for draw in draws if draw.site != "input"]
    lams = torch.tensor([draw.lam for draw in hidden], dtype=torch.float64)
    assert within(lams.sum().item(), len(lams), 0.5, bound=0.5, variance=0.05)  # Beta(2, 2)
    assert within((lams - 0.5).square().sum().item(), len(lams), 0.05, bound=0.25, variance=3 / 560 - 0.0025)
    # Blocks of one: every feature of every channel is altered with probability gamma.
    masks = torch.stack([draw.changed[0].int() for draw in hidden if draw.site == "1" and draw.changed is not None])
    assert within(int(masks.sum()), masks.numel(), 0.4)
    for count in masks.sum(0).flatten().tolist():
        assert within(count, len(masks), 0.4)


def share_of_rectangles(height: int, width: int, least: float) -> float:
    """The probability of keeping more than ``least`` of an image, for lam and the center uniform, by enumeration."""
    steps = 4000
    cuts = Counter(
        (int(height * ((n + 0.5) / steps) ** 0.5), int(width * ((n + 0.5) / steps) ** 0.5)) for n in range(steps)
    )
    total = 0.0
    for (tall, wide), count in cuts.items():
        rows = [sum(0 <= i < height for i in range(r - tall // 2, r - tall // 2 + tall)) for r in range(height)]
        columns = [sum(0 <= j < width for j in range(c - wide // 2, c - wide // 2 + wide)) for c in range(width)]
        kept = sum(1.0 - r * c / (height * width) > least for r in rows for c in columns)
        total += count / steps * kept / (height * width)
    return total


@torch.no_grad()
def test_rectangles_are_those_of_uniform_lam_and_center() -> None:
    model, trials = tiny(), 2000
    mix = PatchUp(model, mode="soft", alpha=50.0, prob=1.0, sites=["input"], num_classes=2)
    images, labels = torch.randn(2, 3, 32, 24), torch.tensor([0, 1])
    kept, rows = [], torch.zeros(32)
    for _ in range(trials):
        mix(images, labels)
        kept.append(drawn(mix).kept.item())
        rows += mask_of(mix)[0, 0].any(1)
    for least in (0.5, 0.7, 0.9):
        assert within(sum(value > least for value in kept), trials, share_of_rectangles(32, 24, least))
    # Top and bottom alike: the difference of two indicators is -1, 0 or 1.
    assert within((rows[0] - rows[-1]).item(), trials, 0.0, variance=1.0)
