"""Every key of a recipe as a flag, with timm's spelling: ``batch_size`` is ``--batch-size``.

Flags are made from the declarations of the keys (``recipe/schema.py``) and of the methods' settings (``methods/``). A
flag that is not given leaves no trace, so that only what was asked for overrides a recipe. Values are checked with the
recipe, not here: all problems are shown together.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, get_origin

import yaml
from timm.utils import ParseKwargs

from ..core.method import list_methods, method_settings
from ..core.settings import Setting, plain, settings_of
from ..errors import UserError
from ..recipe import Recipe, load_recipe
from ..recipe.compose import DEFAULT, PROTOCOL
from ..recipe.schema import MIX_PREFIX, list_mix_settings

# The first key of each group of flags, and its title.
_GROUPS = {
    "dataset": "dataset",
    "input_size": "images and augmentation",
    "model": "model",
    "mix": "method (mixing, labels, loss)",
    "batch_size": "optimizer",
    "epochs": "learning rate schedule",
    "model_ema": "EMA and mixed precision",
    "seed": "reproducibility, validation and checkpoints",
}


def add_recipe_flags(parser: argparse.ArgumentParser, words: Sequence[str] = ()) -> None:
    """Add a flag per key, grouped as the keys are; the help shows the values of the recipe that ``words`` name."""
    shown = named_recipe(words)
    values = shown.to_dict()
    group: Any = parser
    for name, key in settings_of(Recipe).items():
        if name in _GROUPS:
            group = parser.add_argument_group(_GROUPS[name])
        if name == "mix":
            add_mix_flags(group, method=shown.mix, values=shown.mix_settings, default=argparse.SUPPRESS)
        else:
            _add(group, key, f"{key.help} (default: {_shown(values[name])})")


def add_mix_flags(
    group: Any, *, method: str | None = None, values: Mapping[str, Any] | None = None, **common: Any
) -> list[str]:
    """Add ``--mix`` and a flag per setting of any method; return the names of the settings.

    Args:
        group: a parser, or a group of one.
        method: the method whose defaults the help shows; None for those of every method.
        values: its settings if they are not the defaults.
        **common: more arguments for argparse, for every flag.
    """
    default = f" (default: {method})" if method else ""
    group.add_argument("--mix", metavar="NAME", help=f"method: {', '.join(list_methods())}{default}", **common)
    names = list_mix_settings()
    for name in names:
        owners = {other: method_settings(other)[name] for other in list_methods() if name in method_settings(other)}
        if method in owners:
            key, value = owners[method], (values or {}).get(name, plain(owners[method].default))
            text = f"{method}: {key.help} (default: {_shown(value)})"
        else:
            key = next(iter(owners.values()))
            defaults = "; ".join(f"{other}: {_shown(plain(own.default))}" for other, own in owners.items())
            meanings = {own.help for own in owners.values()}
            text = f"{key.help if len(meanings) == 1 else 'meaning depends on the method'} ({defaults})"
        several = any(own.takes_several for own in owners.values())  # --mix may choose any of them
        _add(group, key, text, prefix=MIX_PREFIX, several=several, **common)
    return names


def _add(group: Any, key: Setting, text: str, *, prefix: str = "", several: bool = False, **common: Any) -> None:
    """Add the flag of one key; how its words are read follows from its type."""
    flag = f"--{prefix}{key.name}".replace("_", "-")
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text.replace("%", "%%"), **common}
    kind = key.types[0]
    if kind is bool and not prefix:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
    elif get_origin(kind) is dict:
        group.add_argument(flag, nargs="*", action=ParseKwargs, metavar="KEY=VALUE", **options)
    else:
        metavar = "{" + ",".join(key.choices) + "}" if key.choices else _metavar(key)
        nargs = {"nargs": "+"} if several or key.takes_several else {}
        text_type = _text_or_none if key.optional else str
        group.add_argument(
            flag, type=text_type if kind is str or key.choices else _value, metavar=metavar, **nargs, **options
        )


def _metavar(key: Setting) -> str:
    kinds = str(key.type)
    return "X" if "float" in kinds else "N" if "int" in kinds else "BOOL" if "bool" in kinds else "NAME"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{key}={one}" for key, one in value.items()) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def named_recipe(words: Sequence[str]) -> Recipe:
    """Return the recipe that words name with --recipe and --mix, the default one if they are wrong."""
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    peek.add_argument("--recipe", default=DEFAULT)
    peek.add_argument("--mix")
    given, _ = peek.parse_known_args([word for word in words if word not in ("-h", "--help")])
    try:
        return load_recipe(given.recipe, {} if given.mix is None else {"mix": given.mix})
    except UserError:
        return load_recipe(DEFAULT)


def given_keys(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of a recipe that were given as flags, and the protocol."""
    given = vars(namespace)
    own = {name: given[name] for name in (*settings_of(Recipe), PROTOCOL) if name in given}
    flags = {name: given[MIX_PREFIX + name] for name in list_mix_settings() if MIX_PREFIX + name in given}
    return own | {MIX_PREFIX + name: value for name, value in mix_values(flags).items()}


def mix_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among flags: one word for a setting that takes one value or several is that one value."""
    return {
        name: value[0] if isinstance(value, list) and len(value) == 1 and _takes_one(name) else value
        for name, value in flags.items()
    }


def _takes_one(name: str) -> bool:
    owners = [method_settings(method) for method in list_methods()]
    return any(name in own and own[name].takes_one for own in owners)


def _text_or_none(text: str) -> str | None:
    return None if text.lower() in ("none", "null", "") else text


def _value(text: str) -> Any:
    """Read a word as YAML does; what is not YAML stays text and is refused by the check of its key."""
    try:
        return yaml.safe_load("null" if text.lower() == "none" else text)
    except yaml.YAMLError:
        return text
