"""Override keys of a recipe, as a file does with what it includes and a flag with its recipe."""

from collections.abc import Collection, Mapping
from typing import Any

from ..errors import NoEffect, UserError
from .schema import MIX_PREFIX, Recipe


def override(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat keys with some overridden, without those that the overrides disable.

    With ``sched: cosine`` over a recipe that has milestones, these are no mistake of the caller. A key that had no
    effect before, or is itself an override, is one: it stays, and is refused when the recipe is made.
    """
    return without_idle(_join(values, overrides), keep=_idle_keys(values) | set(overrides))


def _join(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat keys with others put over them; of several methods, a setting for all replaces that of each."""
    joined, kept, own = {**values, **others}, values.get("mix_settings"), others.get("mix_settings", {})
    if isinstance(kept, Mapping) and isinstance(own, Mapping):
        each = {**kept, **own}
        for method, settings in kept.items():
            if isinstance(settings, Mapping) and isinstance(each[method], Mapping):
                stay = {key: value for key, value in settings.items() if MIX_PREFIX + key not in others}
                each[method] = {**stay, **own.get(method, {})}
        joined["mix_settings"] = each
    return joined


def without_idle(values: Mapping[str, Any], *, keep: Collection[str] = ()) -> dict[str, Any]:
    """Return flat keys without those that have no effect, but for the ones to keep."""
    left = dict(values)
    while idle := {name for name in _idle_keys(left) if not _is_among(name, keep)}:
        before, left = left, _without(left, idle)  # without one key, another may have no effect either
        if left == before:
            break
    return left


def _is_among(name: str, keys: Collection[str]) -> bool:
    """Return whether a key is among others; a setting of one of several methods, METHOD.SETTING, has several."""
    setting = MIX_PREFIX + name.rpartition(".")[2]
    return name in keys or ("." in name and (setting in keys or "mix_settings" in keys))


def _without(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return flat keys without some: METHOD.SETTING is that method's own setting, or else the one that all share."""
    each: Mapping[str, Mapping[str, Any]] = values.get("mix_settings") or {}
    own = {f"{method}.{key}" for method, settings in each.items() for key in settings}
    shared = {MIX_PREFIX + name.rpartition(".")[2] for name in names if "." in name and name not in own}
    left = {name: value for name, value in values.items() if name not in names and name not in shared}
    if each:
        left["mix_settings"] = {
            method: {key: value for key, value in settings.items() if f"{method}.{key}" not in names}
            for method, settings in each.items()
        }
    return left


def _idle_keys(values: Mapping[str, Any]) -> set[str]:
    """Return the keys that have no effect; none while something else is wrong with the values."""
    try:
        Recipe.from_dict(values)
    except NoEffect as error:
        return set(error.reasons)
    except UserError:
        pass
    return set()
