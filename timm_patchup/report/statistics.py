"""Statistics over the seeds of a study: intervals, paired differences and tests, as pure functions of numbers.

Seeds are few, so intervals of means are Student's t (the bootstrap covers 83% instead of 95% at five values), and tests
flip the signs of paired differences, which assumes nothing about their distribution and is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from statistics import fmean, stdev

LEVEL = 0.95
_ERROR = 0.05  # 1 - LEVEL without its rounding error
_SIGNS = 2**17  # exact up to 17 pairs; for more, this many of the signs are drawn


@dataclass(frozen=True)
class Difference:
    """The paired differences of two conditions: reference minus other, on equal seeds.

    Attributes:
        pairs: number of seeds that both have.
        mean: mean difference.
        interval: 95% t interval of the mean, None for fewer than two pairs.
        wins: in how many pairs the reference is better; a tie is not a win.
        wins_interval: 95% Clopper-Pearson interval of its probability to win.
        p: two-sided p of the exact sign-flip test, that the mean difference is zero.
    """

    pairs: int
    mean: float
    interval: tuple[float, float] | None
    wins: int
    wins_interval: tuple[float, float]
    p: float


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% t interval of the mean of independent values, None for fewer than two."""
    from scipy.stats import t

    if len(values) < 2:
        return None
    mean = fmean(values)
    half = float(t.ppf(1 - _ERROR / 2, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return mean - half, mean + half


def compare(reference: Sequence[float], other: Sequence[float], *, lower_is_better: bool = True) -> Difference:
    """Compare two conditions, whose values are in the order of the same seeds.

    Raises:
        ValueError: there is no pair, or the numbers of values differ.
    """
    from scipy.stats import binomtest

    differences = [own - its for own, its in zip(reference, other, strict=True)]
    if not differences:
        raise ValueError("there is no pair to compare")
    wins = sum(value < 0 if lower_is_better else value > 0 for value in differences)
    won = binomtest(wins, len(differences)).proportion_ci(LEVEL, method="exact")
    return Difference(
        pairs=len(differences),
        mean=fmean(differences),
        interval=mean_interval(differences),
        wins=wins,
        wins_interval=(float(won.low), float(won.high)),
        p=sign_flip(differences),
    )


def sign_flip(differences: Sequence[float]) -> float:
    """Return the two-sided p of the exact sign-flip test: the share of all signs with a mean as far from zero."""
    from scipy.stats import permutation_test

    if len(differences) < 2:
        return 1.0  # of the two signs of one difference, both are as far from zero
    tested = permutation_test(
        (list(differences),),
        lambda signed, axis: signed.mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_SIGNS,
        random_state=0,
    )
    return float(tested.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method, in the same order."""
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def pairs_needed(comparisons: int) -> int:
    """Return the pairs needed before one of several comparisons can be decided: the smallest p is 2 / 2^pairs."""
    return ceil(1 + log2(max(1, comparisons) / _ERROR))
