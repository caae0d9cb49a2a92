"""One number over several seeds, and its text."""

import pytest

from timm_patchup.report.numbers import SeedValues, Series, as_text
from timm_patchup.report.statistics import mean_interval


def test_mean_deviation_and_interval() -> None:
    values = SeedValues((17.0, 18.0, 22.0))
    assert (values.mean, values.std) == (pytest.approx(19.0), pytest.approx(7**0.5)), "(4 + 1 + 9) / 2"
    assert values.interval == mean_interval(values.values)
    assert values.half_width == pytest.approx(4.302653 * (7 / 3) ** 0.5), "t with two degrees of freedom"
    assert (values.with_std(2), values.with_interval(2)) == ("19.00 ± 2.65", "19.00 (12.43 to 25.57)")


def test_one_value_has_no_spread_and_none_no_mean() -> None:
    one, none = SeedValues((1.0,)), SeedValues()
    assert (one.mean, one.std, one.interval, one.half_width) == (1.0, None, None, 0.0)
    assert (none.mean, none.std, none.interval, none.half_width) == (None, None, None, 0.0)
    assert [one.with_std(1), one.with_interval(1), none.with_std(1), none.with_interval(1)] == ["1.0", "1.0", "-", "-"]
    assert Series("a", {"x": one})["y"] == none


def test_numbers_as_text() -> None:
    assert [as_text(None, None, 2), as_text(1.0, None, 2), as_text(1.234, 0.1, 2)] == ["-", "1.00", "1.23 ± 0.10"]
    assert as_text(-0.5, (-1.04, 0.04), 1, signed=True) == "-0.5 (-1.0 to +0.0)"
    assert [as_text(-1e-16, None, 4), as_text(-0.006, None, 2)] == ["0.0000", "-0.01"], "rho of Manifold Mixup is 0"
