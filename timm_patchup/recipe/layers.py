"""Keys over keys: a file over what it includes, a flag over its recipe, and the rules over what a run stored.

Here a key is a name and a value, and no Recipe is made: what a key needs is looked up in the mapping.
"""

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

from ..core.method import PAPER_SITES, method_settings
from ..core.one_of import split_settings
from ..core.settings import Setting, settings_of, without_effect
from ..errors import UserError
from .schema import MIX_PREFIX, Recipe

# Settings that earlier releases wrote although the method had no use for them.
_RETIRED_SETTINGS = {"hard_patchup": ("mix_alpha",)}


def override(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat keys with some overridden, without those that the overrides disable.

    With ``sched: cosine`` over a recipe that has milestones, these are not a mistake of the caller. A key that had no
    effect before, or is itself an override, is one: it stays, and is refused when the recipe is made.
    """
    return without_idle(_join(values, overrides), keep=_idle_keys(values) | set(overrides)) if values else {**overrides}


def stored_recipe(values: Mapping[str, Any]) -> Recipe:
    """Make a recipe from the keys that a run stored, of this release or an earlier one.

    What had no effect is left out: earlier releases refused fewer of these keys.
    """
    keys = without_retired(values)
    if keys.get("mix") == "dropblock" and "mix_at" not in keys:  # what a release without this key did
        sites = keys.get("mix_sites") or list(PAPER_SITES)
        keys |= {"mix_at": "random", "mix_mask": "sample", "mix_sites": sites}
    return Recipe.from_dict(without_idle(keys))


def without_retired(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored keys without the keys of earlier releases that never had an effect."""
    retired = _RETIRED_SETTINGS.get(str(values.get("mix")), ())
    return {name: value for name, value in values.items() if name not in retired}


def without_idle(values: Mapping[str, Any], *, keep: Collection[str] = ()) -> dict[str, Any]:
    """Return flat keys without those that have no effect, but for the ones to keep."""
    left = dict(values)
    while idle := {name for name in _idle_keys(left) if not _is_among(name, keep)}:
        before, left = left, _without(left, idle)  # without one key, another may have no effect either
        if left == before:
            break
    return left


def _join(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat keys with others put over them; a setting for all methods replaces the setting of each."""
    joined, kept, own = {**values, **others}, values.get("mix_settings"), others.get("mix_settings", {})
    if isinstance(kept, Mapping) and isinstance(own, Mapping):
        each = {**kept, **own}
        for method, settings in kept.items():
            if isinstance(settings, Mapping) and isinstance(each[method], Mapping):
                stay = {key: value for key, value in settings.items() if MIX_PREFIX + key not in others}
                each[method] = {**stay, **own.get(method, {})}
        joined["mix_settings"] = each
    return joined


def _idle_keys(values: Mapping[str, Any]) -> set[str]:
    """Return the keys that lack what they need; settings of several methods as METHOD.SETTING."""
    found = _without_effect(settings_of(Recipe), values)
    mix, own = values.get("mix", "none"), values.get("mix_settings") or {}
    shared = {name.removeprefix(MIX_PREFIX): value for name, value in values.items() if name.startswith(MIX_PREFIX)}
    shared = {name: value for name, value in shared.items() if name not in ("weights", "settings")}
    try:
        each = split_settings([mix] if isinstance(mix, str) else mix, {**shared, **own})
    except (TypeError, UserError):  # reported when the recipe is made
        return found
    for method, settings in each.items():
        prefix = MIX_PREFIX if isinstance(mix, str) else f"{method}."
        found |= {prefix + name for name in _without_effect(method_settings(method), settings)}
    return found


def _without_effect(declared: Mapping[str, Setting], values: Mapping[str, Any]) -> set[str]:
    known = [name for name in values if name in declared]
    if not [name for name in known if declared[name].needs]:
        return set()
    defaults = {name: one.default for name, one in declared.items()}
    words = [name for name in known if isinstance(values[name], str) and declared[name].takes_fractions]
    read = {name: declared[name].from_text(values[name]) for name in words}
    keys = SimpleNamespace(**{**defaults, **values, **read})
    return {name for name in without_effect(declared, keys) if _is_valid(declared[name], getattr(keys, name))}


def _is_valid(known: Setting, value: Any) -> bool:
    """Return whether a value is one of its setting; a wrong one stays, to be reported."""
    try:
        known.check(value)
    except UserError:
        return False
    return True


def _is_among(name: str, keys: Collection[str]) -> bool:
    """Return whether a key is among others; a setting of one of several methods, METHOD.SETTING, has several."""
    setting = MIX_PREFIX + name.rpartition(".")[2]
    return name in keys or ("." in name and (setting in keys or "mix_settings" in keys))


def _without(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return flat keys without some: METHOD.SETTING is that method's own setting, or else the one that all share."""
    several = values.get("mix_settings")
    each = several if isinstance(several, Mapping) else {}
    own = {f"{method}.{key}" for method, settings in each.items() for key in settings}
    shared = {MIX_PREFIX + name.rpartition(".")[2] for name in names if "." in name and name not in own}
    left = {name: value for name, value in values.items() if name not in names and name not in shared}
    if each:
        left["mix_settings"] = {
            method: {key: value for key, value in settings.items() if f"{method}.{key}" not in names}
            for method, settings in each.items()
        }
    return left
