"""Tests of draw.py: the samplers have the distributions they claim, and the stream is repeatable and private.

Every band holds with confidence 1 - 1e-9 for a right sampler (Bernstein's inequality); seeds are fixed.
"""

import pickle
import random
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import torch
from timm_patchup.core.draw import Stream, bernoulli, beta, integer, uniform
from torch import Tensor, nn

from tests.conftest import within
from timm_patchup import PatchUp
from timm_patchup.core import draw as sampling

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


def test_bernoulli_goes_on_when_its_first_guess_was_short() -> None:
    # Gaps are drawn in one go of ample size. Here the size is always 16, so that many goes must fit together.
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


# Stream


def numbers(stream: Stream, batches: int = 3) -> list[list[float]]:
    return [torch.rand(4, generator=stream.next()).tolist() for _ in range(batches)]


def test_stream_repeats_for_the_same_seed_and_count() -> None:
    assert numbers(Stream(5)) == numbers(Stream(5))
    drawn = numbers(Stream(5), 6)
    assert len({tuple(row) for row in drawn}) == 6
    late = Stream(0)
    late.load_state_dict({"seed": 5, "count": 4})
    assert numbers(late, 2) == drawn[4:]


def test_stream_does_not_depend_on_how_much_a_batch_drew() -> None:
    short, long = Stream(5), Stream(5)
    torch.rand(1, generator=short.next())
    torch.rand(1000, generator=long.next())
    assert numbers(short) == numbers(long)


def test_stream_differs_between_seeds() -> None:
    seen = {tuple(numbers(Stream(seed), 1)[0]) for seed in range(50)}
    assert len(seen) == 50


def test_stream_differs_between_ranks_and_its_state_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, states = [], []
    for rank in ("0", "1", "2"):
        monkeypatch.setenv("RANK", rank)
        stream = Stream(5)
        drawn.append(numbers(stream))
        states.append(stream.state_dict())
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
    assert states[0] == states[1] == states[2] == {"seed": 5, "count": 3}
    monkeypatch.delenv("RANK")
    assert numbers(Stream(5)) == drawn[0]


def test_stream_continues_exactly_from_its_state() -> None:
    stream = Stream(9)
    numbers(stream, 5)
    state = stream.state_dict()
    rest = numbers(stream, 5)
    again = Stream(1)
    again.load_state_dict(state)
    assert numbers(again, 5) == rest
    assert again.state_dict() == stream.state_dict()


@pytest.mark.parametrize(
    "state",
    [
        {},
        None,
        [1, 2],
        {"seed": 1},
        {"count": 1},
        {"seed": "a", "count": 1},
        {"seed": 1, "count": None},
        {"seed": 1.7, "count": 2},
        {"seed": 1, "count": -5},
    ],
    ids=str,
)
def test_stream_refuses_a_bad_state(state: object) -> None:
    stream = Stream(5)
    with pytest.raises(ValueError, match="state of a mixer must hold the integers seed and count, got"):
        stream.load_state_dict(state)  # type: ignore[arg-type]
    assert stream.state_dict() == {"seed": 5, "count": 0}


@pytest.mark.parametrize("site", ["input", "stem", "stage1", "stage2"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_global_randomness_is_neither_read_nor_moved(
    mode: str, site: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    def global_states() -> list[object]:
        return [torch.get_rng_state().tolist(), pickle.dumps(np.random.get_state()), random.getstate()]

    draws = []
    for seed in (1, 2):  # other global seeds, the same draws
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        mix = PatchUp(model, mode=mode, prob=1.0, sites=[site], seed=3)  # type: ignore[arg-type]
        before = global_states()
        for _ in range(3):
            x, target = mix(images, labels)
            mix.loss(model(x), target)
            draws.append(mix.draw)
        assert global_states() == before
        mix.detach()
    for one, same in zip(draws[:3], draws[3:]):
        assert one is not None
        assert same is not None
        assert one.site == same.site == site
        assert torch.equal(one.partner, same.partner)
        assert one.lam == same.lam
        assert one.changed is not None
        assert same.changed is not None
        assert torch.equal(one.changed, same.changed)
