"""Intervals and tests over seeds: cases worked by hand, scipy, and simulation."""

import random
from itertools import product
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from timm_patchup.report.statistics import compare, holm, mean_interval, pairs_needed, sign_flip


def test_interval_by_hand() -> None:
    """Mean 4, deviation 2, n = 4: half the width is t(0.975; 3) x 2 / 2 = 3.182446."""
    low, high = mean_interval([2.0, 3.0, 5.0, 6.0]) or (0.0, 0.0)
    deviation = (10 / 3) ** 0.5
    assert (low, high) == pytest.approx((4 - 3.182446 * deviation / 2, 4 + 3.182446 * deviation / 2), abs=1e-5)
    assert mean_interval([1.0]) is None
    assert mean_interval([2.0, 2.0]) == (2.0, 2.0)


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=12, unique=True))
def test_interval_is_scipys(values: list[float]) -> None:
    expected = stats.t.interval(0.95, len(values) - 1, loc=fmean(values), scale=stdev(values) / len(values) ** 0.5)
    assert mean_interval(values) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_sign_flip_by_hand() -> None:
    """Of the 8 signs of 1, 2, 3 the sums are 6, 4, 2, 0, 0, -2, -4, -6."""
    assert sign_flip([1.0, 2.0, 3.0]) == 2 / 8
    assert sign_flip([1.0, 2.0, -3.0]) == 1.0
    assert sign_flip([-1.0, 2.0, 3.0]) == 4 / 8
    assert sign_flip([5.0]) == 1.0
    assert sign_flip([0.0, 0.0, 0.0]) == 1.0


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=9))
def test_sign_flip_counts_all_signs(differences: list[int]) -> None:
    observed = abs(sum(differences))
    signs = list(product((-1, 1), repeat=len(differences)))
    extreme = sum(abs(sum(s * d for s, d in zip(sign, differences))) >= observed for sign in signs)
    assert sign_flip([float(d) for d in differences]) == pytest.approx(extreme / len(signs))


@pytest.mark.parametrize(("pairs", "smallest"), [(3, 0.25), (5, 0.0625), (8, 0.0078125), (10, 0.001953125)])
def test_smallest_p(pairs: int, smallest: float) -> None:
    assert sign_flip([1.0 + i for i in range(pairs)]) == smallest


def test_many_pairs_are_sampled() -> None:
    assert sign_flip([1.0] * 40) < 1e-4


def test_holm_by_hand() -> None:
    """0.01 x 4; 0.02 x 3 = 0.06; 0.03 x 2 = 0.06; 0.04 x 1, but not below those before."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_pairs_needed() -> None:
    """One comparison takes six pairs, 2 / 2^6 = 0.03; four take eight, 4 x 2 / 2^8 = 0.03."""
    assert [pairs_needed(n) for n in (1, 4, 8)] == [6, 8, 9]
    for count in range(1, 20):
        assert count * 2 / 2 ** pairs_needed(count) < 0.05 <= count * 2 / 2 ** (pairs_needed(count) - 1)


def test_paired_difference_by_hand() -> None:
    found = compare([10.0, 11.0, 12.0, 15.0], [12.0, 12.0, 12.0, 14.0])
    assert (found.pairs, found.mean, found.wins) == (4, -0.5, 2), "a tie is no win"
    assert found.wins_interval == pytest.approx((0.067586, 0.932414), abs=1e-6), "2 of 4, from a table"
    assert found.interval == mean_interval([-2.0, -1.0, 0.0, 1.0])
    assert found.p == sign_flip([-2.0, -1.0, 0.0, 1.0])
    assert compare([1.0, 2.0], [3.0, 1.5], lower_is_better=False).wins == 1
    with pytest.raises(ValueError, match="pair"):
        compare([], [])


def test_wins_interval_is_clopper_pearson() -> None:
    """All 8 of 8: the lower end is the p with p^8 = 0.025."""
    found = compare([0.0] * 8, [1.0] * 8)
    assert found.wins_interval == pytest.approx((0.025 ** (1 / 8), 1.0))


def test_without_an_effect_one_in_twenty_intervals_misses() -> None:
    """2,000 simulations: 5% miss, within four standard errors of 0.5%. So do paired differences of equal methods."""
    source, runs, seeds = random.Random(0), 2000, 6
    missed = rejected = 0
    for _ in range(runs):
        own, other = ([source.gauss(15.0, 1.0) for _ in range(seeds)] for _ in range(2))
        low, high = mean_interval(own) or (0.0, 0.0)
        missed += not low <= 15.0 <= high
        low, high = mean_interval([mine - its for mine, its in zip(own, other)]) or (0.0, 0.0)
        rejected += not low <= 0.0 <= high
    for count in (missed, rejected):
        assert abs(count / runs - 0.05) < 4 * (0.05 * 0.95 / runs) ** 0.5


def test_without_an_effect_the_sign_flip_test_rejects_at_most_one_in_twenty() -> None:
    source, runs, seeds = random.Random(1), 1000, 8
    p_values = [
        sign_flip([source.expovariate(1.0) - source.expovariate(1.0) for _ in range(seeds)]) for _ in range(runs)
    ]
    rejected = sum(p < 0.05 for p in p_values) / runs
    # Of 256 signs the 12 most extreme have p of at most 0.047.
    assert abs(rejected - 12 / 256) < 4 * (0.047 * 0.953 / runs) ** 0.5
