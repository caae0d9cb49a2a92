"""One number over several seeds: its mean, deviation and interval, and their text.

Tables and figures are made from the same values, so both show the same mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from .statistics import mean_interval


@dataclass(frozen=True)
class Metric:
    """What a number measures.

    Attributes:
        name: its name in definitions of studies and in tables.
        unit: its unit.
        digits: decimals in tables.
        higher_is_better: whether a higher value wins a comparison.
        lines: what an evaluation's values are, such as ``eps``, if a figure has a line over them; else empty.
    """

    name: str
    unit: str
    digits: int = 2
    higher_is_better: bool = False
    lines: str = ""


@dataclass(frozen=True)
class SeedValues:
    """One number of several models that differ in the seed only; without values it is missing."""

    values: tuple[float, ...] = ()

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation, None for fewer than two values."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the mean, None for fewer than two values."""
        return mean_interval(self.values)

    @property
    def half_width(self) -> float:
        """Half the width of the interval, for error bars; 0 if there is none."""
        return 0.0 if self.interval is None else (self.interval[1] - self.interval[0]) / 2

    def with_std(self, digits: int) -> str:
        return as_text(self.mean, self.std, digits)

    def with_interval(self, digits: int) -> str:
        return as_text(self.mean, self.interval, digits)


@dataclass(frozen=True)
class Series:
    """The numbers that a figure shows under one label, by the name of the value."""

    label: str
    values: Mapping[str, SeedValues]

    def __getitem__(self, name: str) -> SeedValues:
        return self.values.get(name, SeedValues())


def as_text(
    mean: float | None, spread: tuple[float, float] | float | None, digits: int, *, signed: bool = False
) -> str:
    """Return ``mean (low to high)`` for an interval, ``mean ± spread`` for a deviation; ``-`` if there is no mean."""
    if mean is None:
        return "-"

    def text(value: float) -> str:
        return f"{round(value, digits) + 0.0:{'+' if signed else ''}.{digits}f}"  # no -0.00

    if spread is None:
        return text(mean)
    if isinstance(spread, tuple):
        return f"{text(mean)} ({' to '.join(map(text, spread))})"
    return f"{text(mean)} ± {spread:.{digits}f}"
