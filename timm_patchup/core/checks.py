"""Checks of arguments: each ends in one line that names the argument, what was given, what is allowed or meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from math import isfinite
from typing import Any


def check_number(
    name: str,
    value: Any,
    *,
    low: float,
    high: float = float("inf"),
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """Return the value as a float if it is a finite number between ``low`` and ``high``."""
    allowed = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open or high == float('inf') else ']'}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number in {allowed}, got {value!r}")
    above = value > low if low_open else value >= low
    below = value < high if high_open else value <= high
    if not (isfinite(value) and above and below):
        raise ValueError(f"{name} must lie in {allowed}, got {value!r}")
    return float(value)


def check_count(name: str, value: Any, *, low: int) -> int:
    """Return the value if it is a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number of at least {low}, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    return value


def check_choice(name: str, value: Any, choices: Iterable[str]) -> Any:
    """Return the value if it is one of the choices; otherwise name the nearest ones."""
    choices = list(choices)
    if value in choices:
        return value
    raise ValueError(f"unknown {name} {value!r}: choose from {', '.join(choices)}{nearest(value, choices)}")


def nearest(name: Any, known: Iterable[str]) -> str:
    """Return the end of a line about an unknown name: ``"; did you mean a or b?"``, empty where nothing is near.

    Example:
        >>> nearest("epoch", ["epochs", "lr"])
        '; did you mean epochs?'
    """
    near = get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""
