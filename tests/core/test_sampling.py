"""The samplers have the distributions they claim.

Every band holds with confidence 1 - 1e-9 for a right sampler (Bernstein's inequality); seeds are fixed.
"""

from itertools import pairwise
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.conftest import within
from timm_patchup.core import sampling
from timm_patchup.core.sampling import bernoulli, beta, integer, uniform

CPU = torch.device("cpu")


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# bernoulli


@pytest.mark.parametrize("rate", [1e-5, 1e-3, 512 / 33124, 0.3, 0.5, 0.97, 0.9999])
def test_bernoulli_has_its_rate(rate: float) -> None:
    mask = bernoulli((100, 100, 100), rate, seeded(), CPU)
    assert mask.shape == (100, 100, 100)
    assert mask.dtype is torch.bool
    assert within(int(mask.sum()), mask.numel(), rate)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_bernoulli_is_independent_of_its_neighbours(rate: float) -> None:
    mask = bernoulli((1000, 1000), rate, seeded(2), CPU)
    # Pairs that do not overlap, so that they are independent of each other too.
    across, down, apart = (mask[:, 0::2], mask[:, 1::2]), (mask[0::2], mask[1::2]), (mask[0::2, :-7], mask[1::2, 7:])
    for first, second in (across, down, apart):
        for value in (True, False):
            for other in (True, False):
                share = (rate if value else 1 - rate) * (rate if other else 1 - rate)
                both = int(((first == value) & (second == other)).sum())
                assert within(both, first.numel(), share)


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_bernoulli_treats_every_position_alike(rate: float) -> None:
    generator, trials = seeded(3), 4000
    counts = sum(bernoulli((3, 4), rate, generator, CPU).int() for _ in range(trials))
    assert isinstance(counts, Tensor)
    for count in counts.flatten().tolist():  # the first and the last among them
        assert within(count, trials, rate)


def test_bernoulli_continues_if_its_first_guess_was_short() -> None:
    # Gaps are drawn in one chunk of ample size. Here a chunk is always 16, so that many must fit together.
    with mock.patch.object(sampling, "sqrt", lambda expected: -expected / 6.0):
        mask = bernoulli((400, 500), 0.25, seeded(4), CPU).flatten()
    assert within(int(mask.sum()), mask.numel(), 0.25)
    assert within(int((mask[0::2] & mask[1::2]).sum()), mask.numel() // 2, 0.0625)
    assert within(int(mask[-1000:].sum()), 1000, 0.25)


def test_bernoulli_at_its_ends() -> None:
    assert not bernoulli((50, 50), 0.0, seeded(), CPU).any()
    assert bernoulli((50, 50), 1.0, seeded(), CPU).all()
    assert bernoulli((50, 50), 1.5, seeded(), CPU).all()
    assert not bernoulli((50, 50), 1e-12, seeded(), CPU).any()  # by chance once in 4e8
    assert not bernoulli((50, 50), 1e-300, seeded(), CPU).any()
    assert bernoulli((50, 50), 1 - 1e-13, seeded(), CPU).all()  # by chance not once in 4e9
    assert bernoulli((1,), 0.5, seeded(), CPU).shape == (1,)
    assert bernoulli((0, 3), 0.5, seeded(), CPU).shape == (0, 3)


def test_bernoulli_differs_between_generators_and_repeats_with_one() -> None:
    one, same, other = (bernoulli((20, 20), 0.3, seeded(seed), CPU) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


# beta, uniform, integer


@pytest.mark.parametrize("alpha", [1e-4, 1e-3, 0.2, 1.0, 2.0, 100.0])
def test_beta_has_its_moments(alpha: float) -> None:
    # A narrow distribution needs more draws before its variance stands out from the range of single values.
    generator, trials = seeded(5), 40000 if alpha > 10.0 else 10000
    values = torch.tensor([beta(alpha, generator) for _ in range(trials)], dtype=torch.float64)
    variance = 1.0 / (4.0 * (2.0 * alpha + 1.0))
    fourth = 3.0 / (16.0 * (2.0 * alpha + 1.0) * (2.0 * alpha + 3.0))
    assert bool(((values >= 0.0) & (values <= 1.0)).all())
    assert within(values.sum().item(), trials, 0.5, bound=0.5, variance=variance)
    squares = (values - 0.5).square().sum().item()
    assert within(squares, trials, variance, bound=0.25, variance=fourth - variance**2)


def test_beta_has_its_distribution() -> None:
    generator, trials = seeded(6), 10000
    flat = torch.tensor([beta(1.0, generator) for _ in range(trials)], dtype=torch.float64)
    curved = torch.tensor([beta(2.0, generator) for _ in range(trials)], dtype=torch.float64)
    for point in (0.1, 0.25, 0.5, 0.8):
        assert within(int((flat < point).sum()), trials, point)
        assert within(int((curved < point).sum()), trials, 3 * point**2 - 2 * point**3)


def test_uniform_and_integer_have_their_distributions() -> None:
    generator, trials = seeded(7), 10000
    values = torch.tensor([uniform(generator) for _ in range(trials)], dtype=torch.float64)
    for low, high in pairwise([0.0, 0.2, 0.5, 0.9, 1.0]):
        assert within(int(((values >= low) & (values < high)).sum()), trials, high - low)
    counts = torch.bincount(torch.tensor([integer(7, generator) for _ in range(trials)]), minlength=7)
    assert len(counts) == 7
    assert all(within(count, trials, 1 / 7) for count in counts.tolist())
