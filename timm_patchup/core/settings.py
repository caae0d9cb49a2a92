"""One declaration of a setting serves everything that is known of it.

``setting()`` declares a field of a dataclass with its default, help and range. From that come the check of the value
(``CheckedSettings``), the key of a recipe, the flag with its help, the record of a run and the tables of the
documentation (``settings_of``). Methods and recipes declare their fields with it and nowhere else.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import NoEffect, UserError, WrongType, brief, nearest

AUTO = "auto"  # a value that is found out later, for settings that allow it
Need = Callable[[Any], str | None]


@dataclass(frozen=True)
class Setting:
    """What is known of one setting.

    Attributes:
        name: its name.
        type: its type hint, such as ``float``, ``tuple[int, ...] | None`` or ``Literal["hard", "soft"]``.
        default: its default.
        help: one line for users.
        low: lowest value, itself allowed; of a list it binds each value.
        high: highest value, itself allowed.
        above: the value must be greater.
        below: the value must be smaller.
        fixed: whether it may not change when a run is resumed.
        auto: whether the word ``auto`` is allowed, too.
        needs: what it needs to have an effect: takes all values and returns None if that is there, otherwise why the
            setting has no effect, as the end of the sentence "NAME has no effect ...". Changed all the same, the
            setting is refused.
    """

    name: str
    type: Any
    default: Any = None
    help: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    fixed: bool = True
    auto: bool = False
    needs: Need | None = None

    @cached_property
    def types(self) -> tuple[Any, ...]:
        """The alternatives of the type, None left out."""
        union = get_origin(self.type) in (Union, UnionType)
        return tuple(kind for kind in get_args(self.type) if kind is not NoneType) if union else (self.type,)

    @cached_property
    def optional(self) -> bool:
        return NoneType in get_args(self.type)

    @property
    def choices(self) -> tuple[str, ...] | None:
        return get_args(self.types[0]) if get_origin(self.types[0]) is Literal else None

    @property
    def takes_several(self) -> bool:
        return any(get_origin(kind) in (list, tuple) for kind in self.types)

    @property
    def takes_one(self) -> bool:
        return any(get_origin(kind) not in (list, tuple) for kind in self.types)

    @cached_property
    def takes_fractions(self) -> bool:
        return any(float in (kind, *get_args(kind)) for kind in self.types)

    def check(self, value: Any, *, called: str | None = None) -> Any:
        """Return the value in the type of the setting.

        Args:
            value: what was given.
            called: what the caller knows the setting as; default its name.

        Raises:
            UserError: outside of its range, or none of its choices.
            WrongType: of another type.
        """
        name = called or self.name
        if value is None and self.optional:
            return None
        if self.auto and isinstance(value, str) and value == AUTO:
            return AUTO
        is_several = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        for kind in self.types:
            if get_origin(kind) in (list, tuple) and (is_several or not self.takes_one):
                return self._check_several(name, value, kind)
        kind = self.types[0]
        if get_origin(kind) is dict:
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise WrongType(f"{name} must be a mapping of names to values, got {brief(value)}")
            return dict(value)
        return self._check_one(name, value, kind)

    def _check_several(self, name: str, value: Any, kind: Any) -> Any:
        container, item = get_origin(kind), get_args(kind)[0]
        values = list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else [value]
        if item is str and (isinstance(value, str) or not all(isinstance(one, str) for one in values)):
            raise WrongType(f"{name} must be a list of names, got {brief(value)}")
        if not values:
            raise UserError(f"{name} is empty: give at least one value")
        return container(self._check_one(name, one, item) for one in values)

    def _check_one(self, name: str, value: Any, kind: Any) -> Any:
        if get_origin(kind) is Literal:
            if value in get_args(kind):
                return value
            choices = get_args(kind)
            raise UserError(f"{name} must be one of {', '.join(choices)}, got {brief(value)}{nearest(value, choices)}")
        if kind is bool or kind is str:
            if isinstance(value, kind):
                return value
            raise WrongType(f"{name} must be {'true or false' if kind is bool else 'a word'}, got {brief(value)}")
        if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
            raise WrongType(f"{name} must be {self.range(kind)}, got {brief(value)}")
        if not self._in_range(value):
            raise UserError(f"{name} must be {self.range(kind)}, got {brief(value)}")
        return kind(value)

    def _in_range(self, value: float) -> bool:
        return (
            isfinite(value)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def range(self, kind: Any) -> str:
        """Return what is allowed: ``"a number in [0, 1]"``, ``"a whole number of at least 1"``."""
        noun = "a whole number" if kind is int else "a number"
        bottom = self.low if self.above is None else self.above
        top = self.high if self.below is None else self.below
        if bottom is not None and top is not None:
            ends = "[" if self.above is None else "(", "]" if self.below is None else ")"
            return f"{noun} in {ends[0]}{bottom:g}, {top:g}{ends[1]}"
        if bottom is None:
            return noun if top is None else f"{noun} of at most {top:g}"
        return f"{noun} above {bottom:g}" if self.above is not None else f"{noun} of at least {bottom:g}"

    def from_text(self, value: Any) -> Any:
        """Return a value of a YAML file or a flag with its numbers read: YAML 1.1 takes ``5e-1`` for a word."""
        if isinstance(value, list):
            return [self.from_text(one) for one in value]
        if isinstance(value, str) and self.takes_fractions:
            with suppress(ValueError):
                return float(value)
        return value


def setting(default: Any, help: str, *, idle: Need | None = None, **known: Any) -> Any:
    """Declare a field of a dataclass as a setting.

    Args:
        default: its default; a list or mapping is copied for each instance.
        help: one line for users.
        idle: the old name of ``needs``.
        **known: what else is known of it: the attributes of ``Setting`` from ``low`` on.

    Example:
        >>> alpha: float = setting(2.0, "lam ~ Beta(alpha, alpha)", above=0)
    """
    if idle is not None:
        warnings.warn("setting(idle=...) is now setting(needs=...)", DeprecationWarning, stacklevel=2)
        known["needs"] = idle
    metadata = {"setting": Setting("", Any, default, help, **known)}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def on(name: str) -> Need:
    """Need another setting to be on: not false, none or 0."""
    return lambda values: None if getattr(values, name) else f"without {name}"


def without_effect(declared: Mapping[str, Setting], values: Any) -> dict[str, str]:
    """Return the settings that differ from their defaults although what they need is not there, and why."""
    reasons = {}
    for name, known in declared.items():
        if known.needs is not None and getattr(values, name) not in (known.default, AUTO):
            reasons[name] = known.needs(values)
    return {name: why for name, why in reasons.items() if why}


_settings: dict[type, dict[str, Setting]] = {}


def settings_of(kind: type) -> dict[str, Setting]:
    """Return the settings that a dataclass declares, in the order of its fields."""
    if kind not in _settings:
        hints = get_type_hints(kind)
        found = [(f.name, f.metadata["setting"]) for f in fields(kind) if "setting" in f.metadata]
        _settings[kind] = {name: replace(known, name=name, type=hints[name]) for name, known in found}
    return _settings[kind]


@dataclass(frozen=True, kw_only=True)
class CheckedSettings:
    """Base of frozen dataclasses whose settings are checked when an instance is made.

    Raises:
        UserError: everything that is wrong with the values.
    """

    def __post_init__(self) -> None:
        errors: list[UserError] = []
        declared = settings_of(type(self))
        for name, known in declared.items():
            value = getattr(self, name)
            if value is known.default:
                continue
            object.__setattr__(self, name, known.default)  # so that what contradicts other values is reported, too
            try:
                object.__setattr__(self, name, known.check(value))
            except UserError as error:
                errors.append(error)
        raise_together([*errors, *map(UserError, self.contradictions())])
        if reasons := without_effect(declared, self):  # reported once nothing else is wrong
            raise NoEffect(reasons)

    def contradictions(self) -> Iterable[str]:
        """Return a line per value that contradicts another one."""
        return []

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values, as YAML and JSON store them."""
        return {name: plain(getattr(self, name)) for name in settings_of(type(self))}


@contextmanager
def collecting(errors: list[UserError]) -> Iterator[None]:
    """Add a UserError that the block raises to others, to raise them together."""
    try:
        yield
    except UserError as error:
        errors.append(error)


def raise_together(errors: Sequence[UserError]) -> None:
    """Raise one error as it is, several as one with all their problems."""
    if len(errors) == 1:
        raise errors[0]
    idle = [error.reasons for error in errors if isinstance(error, NoEffect)]
    if errors and len(idle) == len(errors):
        raise NoEffect({name: why for reasons in idle for name, why in reasons.items()})
    if errors:
        raise UserError([problem for error in errors for problem in error.problems])


def check_value(name: str, value: Any, kind: Any, **limits: Any) -> Any:
    """Check a single argument as a setting is checked: ``check_value("seed", seed, int, low=0)``."""
    return Setting(name, kind, **limits).check(value)


def plain(value: Any) -> Any:
    """Return a value as YAML and JSON give it back."""
    return list(value) if isinstance(value, tuple) else value
