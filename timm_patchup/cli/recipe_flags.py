"""Every key of a recipe as a flag, with timm's spelling: ``batch_size`` is ``--batch-size``.

A flag that is not given leaves no trace, so that only what was asked for overrides a recipe. Values are checked with
the recipe, not here: all problems are shown together.
"""

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from timm.utils import ParseKwargs

from ..methods import list_methods, list_settings
from ..recipe.schema import MIX_PREFIX, Recipe


def add_recipe_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag for each key."""
    group = parser.add_argument_group("recipe", "keys of a recipe; a flag overrides what the recipe says")
    hints = get_type_hints(Recipe)
    for f in fields(Recipe):
        if f.name in ("mix_settings", "mix"):
            continue
        flag = f"--{f.name.replace('_', '-')}"
        help_text = f.metadata["help"].replace("%", "%%")
        if hints[f.name] is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help_text)
        elif get_origin(hints[f.name]) is dict:
            group.add_argument(
                flag, nargs="*", action=ParseKwargs, default=argparse.SUPPRESS, metavar="KEY=VALUE", help=help_text
            )
        else:
            group.add_argument(flag, default=argparse.SUPPRESS, help=help_text, **_reading(hints[f.name]))
    add_mix_flags(parser, default=argparse.SUPPRESS)


def add_mix_flags(parser: argparse.ArgumentParser, **common: Any) -> list[str]:
    """Add ``--mix`` and one flag for each setting of any method; return the names of the settings."""
    group = parser.add_argument_group("PatchUp", "mixing inside the network (timm_patchup)")
    group.add_argument("--mix", metavar="NAME", help=f"method: {', '.join(list_methods())}", **common)
    settings = list_settings()
    for name, parameter in settings.items():
        several = {"nargs": "+"} if "Sequence" in str(parameter.annotation) else {}
        text = f"setting {name} of the method; default {parameter.default!r} unless the method has its own"
        flag = f"--{MIX_PREFIX}{name}".replace("_", "-")
        group.add_argument(flag, type=_value, help=text.replace("%", "%%"), **several, **common)  # type: ignore[arg-type]
    return list(settings)


def given_keys(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of a recipe that were given as flags."""
    given = vars(namespace)
    names = [f.name for f in fields(Recipe)] + [f"{MIX_PREFIX}{name}" for name in list_settings()]
    return single_values({name: given[name] for name in names if name in given}, prefix=MIX_PREFIX)


def single_values(values: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Return settings with a list of one block size as that block size: one for all sites."""
    taken = dict(values)
    sizes = taken.get(f"{prefix}block_size")
    if isinstance(sizes, list) and len(sizes) == 1:
        taken[f"{prefix}block_size"] = sizes[0]
    return taken


def _reading(hint: Any) -> dict[str, Any]:
    """Return how the words of a flag are read: as they stand for text, as YAML values for all else."""
    optional = type(None) in get_args(hint)
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if optional else [hint]
    if get_origin(kinds[0]) is list:
        return {"nargs": "+", "type": _value}
    if kinds[0] is str:
        return {"type": _text_or_none if optional else str}
    return {"type": _value}


def _text_or_none(text: str) -> str | None:
    return None if text.lower() in ("none", "null", "") else text


def _value(text: str) -> Any:
    """Read a word as YAML does; what is not YAML stays text and is refused by the check of its key."""
    try:
        return yaml.safe_load("null" if text.lower() == "none" else text)
    except yaml.YAMLError:
        return text
