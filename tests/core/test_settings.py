"""One declaration of a setting: its check, what it allows, numbers in text, and classes that collect all problems."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from torch import nn

from timm_patchup import PatchUp
from timm_patchup.core.settings import (
    CheckedSettings,
    Setting,
    check_value,
    on,
    plain,
    raise_together,
    setting,
    settings_of,
)
from timm_patchup.errors import UserError, WrongType

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("kind", "limits", "allowed"),
    [
        (float, {"low": 0, "high": 1}, "a number in [0, 1]"),
        (float, {"low": 0, "below": 1}, "a number in [0, 1)"),
        (float, {"above": 0, "high": 1}, "a number in (0, 1]"),
        (float, {"above": 0, "below": 0.5}, "a number in (0, 0.5)"),
        (float, {"above": 0}, "a number above 0"),
        (float, {"low": 2.5}, "a number of at least 2.5"),
        (float, {"high": 3}, "a number of at most 3"),
        (float, {}, "a number"),
        (int, {"low": 1}, "a whole number of at least 1"),
        (int, {"low": 1, "high": 9}, "a whole number in [1, 9]"),
        (int, {}, "a whole number"),
    ],
)
def test_numbers_outside_of_their_range(kind: type, limits: dict[str, float], allowed: str) -> None:
    ends = [(limits.get("low"), 0), (limits.get("above"), 1), (limits.get("high"), 0), (limits.get("below"), -1)]
    inside = {kind(2) if limits in ({}, {"high": 3}) else None}
    inside |= {kind(end) for end, step in ends if end is not None and step == 0}
    outside: list[Any] = [NAN, INF, -INF] if kind is float else []
    outside += [limits[name] - 1 for name in ("low", "above") if name in limits]
    outside += [limits[name] + 1 for name in ("high", "below") if name in limits]
    outside += [limits[name] for name in ("above", "below") if name in limits]
    for value in inside - {None}:
        assert check_value("x", value, kind, **limits) == value
    for value in outside:
        if kind is int:
            value = int(value)
        with pytest.raises(UserError) as caught:
            check_value("x", value, kind, **limits)
        assert caught.value.problems == [f"x must be {allowed}, got {value!r}"]
        assert not isinstance(caught.value, TypeError)
    for value in ("0.5", "much", None, True, [0.5], 1j):
        with pytest.raises(WrongType) as caught_type:
            check_value("x", value, kind, **limits)
        assert caught_type.value.problems == [f"x must be {allowed}, got {value!r}"]
        assert isinstance(caught_type.value, TypeError)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (float, 1, 1.0),
        (float | None, None, None),
        (int | tuple[int, ...], 7, 7),
        (int | tuple[int, ...], [7, 5], (7, 5)),
        (tuple[int, ...], 4, (4,)),
        (list[float], (1, 2.5), [1.0, 2.5]),
        (tuple[str, ...] | None, ["stem"], ("stem",)),
        (Literal["hard", "soft"], "soft", "soft"),
        (bool, False, False),
        (str | None, None, None),
        (dict[str, Any], {"a": 1}, {"a": 1}),
    ],
    ids=str,
)
def test_values_come_back_in_their_own_type(kind: Any, value: Any, expected: Any) -> None:
    checked = check_value("x", value, kind)
    assert checked == expected
    assert type(checked) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int | tuple[int, ...], [7, 2.5], "x must be a whole number, got 2.5"),
        (int, [7], r"x must be a whole number, got [7]"),
        (tuple[str, ...], "stem", "x must be a list of names, got 'stem'"),
        (tuple[str, ...], ["stem", 3], "x must be a list of names, got ['stem', 3]"),
        (bool, 1, "x must be true or false, got 1"),
        (str, 3, "x must be a word, got 3"),
        (dict[str, Any], 3, "x must be a mapping of names to values, got 3"),
        (dict[str, Any], {1: 2}, "x must be a mapping of names to values, got {1: 2}"),
    ],
)
def test_values_of_another_type(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(WrongType) as caught:
        check_value("x", value, kind)
    assert caught.value.problems == [message]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (tuple[int, ...], [], "x is empty: give at least one value"),
        (Literal["hard", "soft"], "hrad", "x must be one of hard, soft, got 'hrad'; did you mean hard?"),
        (Literal["hard", "soft"], 3, "x must be one of hard, soft, got 3"),
    ],
)
def test_values_that_are_not_allowed(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        check_value("x", value, kind)
    assert caught.value.problems == [message]


# Numbers in text


@pytest.mark.parametrize(
    ("kind", "text", "read"),
    [
        (float, "5e-1", 0.5),
        (float, "1e3", 1000.0),
        (float | None, "5e-1", 0.5),
        (list[float], ["1e-1", 2], [0.1, 2]),
        (float, "much", "much"),
        (float, 3, 3),
        (int, "1e3", "1e3"),
        (str, "5e-1", "5e-1"),
        (Literal["5e-1"], "5e-1", "5e-1"),
        (tuple[str, ...], ["5e-1"], ["5e-1"]),
    ],
    ids=str,
)
def test_numbers_with_an_exponent_are_read_if_a_number_is_wanted(kind: Any, text: Any, read: Any) -> None:
    assert Setting("x", kind).from_text(text) == read
    assert type(Setting("x", kind).from_text(text)) is type(read)


@pytest.mark.parametrize("value", ["0.5", "5e-1"])
def test_text_is_no_number_in_code(value: str, model: nn.Module) -> None:
    with pytest.raises(WrongType, match=rf"^gamma must be a number in \[0, 1\], got '{value}'$"):
        PatchUp(model, gamma=value)


# Dataclasses that check their settings


@dataclass(frozen=True, kw_only=True)
class Example(CheckedSettings):
    """Three settings, of which two must agree, and a field that is none."""

    rate: float = setting(0.5, "a rate", low=0, high=1)
    sizes: tuple[int, ...] = setting((3, 5), "some sizes", low=1)
    count: int = setting(2, "how many sizes", low=1, fixed=False)
    note: str = "not a setting"

    def contradictions(self) -> list[str]:
        return [] if self.count == len(self.sizes) else [f"count is {self.count}, there are {len(self.sizes)} sizes"]


def test_declarations_are_found_in_order() -> None:
    assert settings_of(Example) == {
        "rate": Setting("rate", float, 0.5, "a rate", low=0, high=1),
        "sizes": Setting("sizes", tuple[int, ...], (3, 5), "some sizes", low=1),
        "count": Setting("count", int, 2, "how many sizes", low=1, fixed=False),
    }
    assert list(settings_of(Example)) == ["rate", "sizes", "count"]


def test_values_are_taken_over_in_their_own_type() -> None:
    example = Example(rate=1, sizes=[4, 5])  # type: ignore[arg-type]
    assert example == Example(rate=1.0, sizes=(4, 5))
    assert isinstance(example.rate, float)
    assert example.settings() == {"rate": 1.0, "sizes": [4, 5], "count": 2}
    assert plain((1, 2)) == [1, 2]


def test_all_problems_are_collected() -> None:
    with pytest.raises(UserError) as caught:
        Example(rate=2, sizes=[3, 0], count="two")  # type: ignore[arg-type]
    assert caught.value.problems == [
        "rate must be a number in [0, 1], got 2",
        "sizes must be a whole number of at least 1, got 0",
        "count must be a whole number of at least 1, got 'two'",
    ]
    assert str(caught.value).splitlines() == caught.value.problems


def test_contradictions_are_reported_beside_wrong_values() -> None:
    with pytest.raises(UserError) as caught:
        Example(rate=2, count=7)
    assert caught.value.problems == ["rate must be a number in [0, 1], got 2", "count is 7, there are 2 sizes"]
    # A wrong value contradicts nothing: its default takes its place.
    with pytest.raises(UserError) as caught:
        Example(count=0)
    assert caught.value.problems == ["count must be a whole number of at least 1, got 0"]


def test_one_problem_keeps_its_type() -> None:
    with pytest.raises(WrongType):
        Example(rate="0.5")  # type: ignore[arg-type]
    raise_together([])
    both = [WrongType("a"), UserError(["b", "c"])]
    with pytest.raises(UserError) as caught:
        raise_together(both)
    assert caught.value.problems == ["a", "b", "c"]


def test_lists_are_not_shared_between_instances() -> None:
    @dataclass(frozen=True, kw_only=True)
    class WithList(CheckedSettings):
        values: list[int] = setting([1, 2], "some values")

    first, second = WithList(), WithList()
    first.values.append(3)
    assert second.values == [1, 2]
    assert settings_of(WithList)["values"].default == [1, 2]


def test_the_old_name_of_needs_warns_and_works() -> None:
    with pytest.warns(DeprecationWarning, match="needs"):
        declared = setting(1, "a number", idle=on("switch")).metadata["setting"]
    assert declared.needs(type("Values", (), {"switch": False})) == "without switch"
