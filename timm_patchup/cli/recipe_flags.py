"""Every key of a recipe as a flag, with timm's spelling: ``batch_size`` is ``--batch-size``.

Flags are made from the declarations of the keys (``recipe/schema.py``) and of the methods' settings (``methods/``). A
flag that is not given leaves no trace, so that only what was asked for overrides a recipe. Values are checked with the
recipe, not here: all problems are shown together.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, get_origin

from timm.utils import ParseKwargs

from ..core.method import list_methods, method_settings
from ..core.settings import AUTO, Setting, plain, settings_of
from ..errors import UserError, brief
from ..recipe import Recipe, load_recipe
from ..recipe.compose import DEFAULT, PROTOCOL
from ..recipe.schema import MIX_PREFIX, list_keys, list_mix_settings
from ..system.checked import parse_yaml

ALLOW_IMPORTS = "--allow-imports"
ALLOW_IMPORTS_HELP = "import the modules of methods (module:Name) that a file names, which runs their code"
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
            add_mix_flags(group, methods=shown.methods, default=argparse.SUPPRESS)
        elif name != "mix_weights":
            _add(group, key, f"{key.help} (default: {_shown(values[name])})")


def add_mix_flags(group: Any, *, methods: Mapping[str, Mapping[str, Any]] | None = None, **common: Any) -> list[str]:
    """Add ``--mix``, the flags of several methods and one per setting of any method; return the keys they set.

    Args:
        group: a parser, or a group of one.
        methods: the methods and settings whose values the help shows; None for the defaults of every method.
        **common: more arguments for argparse, for every flag.
    """
    default = f" (default: {' '.join(methods)})" if methods else ""
    text = f"method, or several, one of which is chosen per batch: {', '.join(list_methods())}{default}"
    group.add_argument("--mix", nargs="+", metavar="NAME", help=text, **common)
    weights = settings_of(Recipe)["mix_weights"]
    _add(group, weights, f"{weights.help} (default: equal)", **common)
    text = "settings of one of several methods, such as cutmix.prob=0.5; --mix-SETTING is for all that have it"
    group.add_argument(
        "--mix-settings", nargs="+", action=_BySetting, metavar="NAME.SETTING=VALUE", help=text, **common
    )
    names = list_mix_settings()
    for name in names:
        owners = {other: method_settings(other)[name] for other in list_methods() if name in method_settings(other)}
        shown = {method: values[name] for method, values in (methods or {}).items() if name in values}
        if shown:
            key = owners[next(iter(shown))]
            text = "; ".join(f"{one}: {owners[one].help} (default: {_shown(value)})" for one, value in shown.items())
        else:
            key = next(iter(owners.values()))
            defaults = "; ".join(f"{other}: {_shown(plain(own.default))}" for other, own in owners.items())
            meanings = {own.help for own in owners.values()}
            text = f"{key.help if len(meanings) == 1 else 'meaning depends on the method'} ({defaults})"
        several = any(own.takes_several for own in owners.values())  # --mix may choose any of them
        _add(group, key, text, prefix=MIX_PREFIX, several=several, **common)
    return ["mix", "mix_weights", "mix_settings", *(MIX_PREFIX + name for name in names)]


class _BySetting(argparse.Action):
    """Read words such as ``cutmix.prob=0.5`` into settings by method."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        found: dict[str, dict[str, Any]] = {}
        for word in values:
            name, equals, value = word.partition("=")
            method, _, setting = name.rpartition(".")
            if not (method and setting and equals):
                parser.error(f"{option_string} needs METHOD.SETTING=VALUE, such as cutmix.prob=0.5, got {brief(word)}")
            found.setdefault(method, {})[setting] = _value(value)
        setattr(namespace, self.dest, found)


def _add(group: Any, key: Setting, text: str, *, prefix: str = "", several: bool = False, **common: Any) -> None:
    """Add the flag of one key; how its words are read follows from its type."""
    flag = f"--{prefix}{key.name}".replace("_", "-")
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text.replace("%", "%%"), **common}
    kind = key.types[0]
    if kind is bool and not prefix:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
    elif get_origin(kind) is dict:
        group.add_argument(flag, nargs="*", action=_KeywordArguments, metavar="KEY=VALUE", **options)
    else:
        metavar = "{" + ",".join(key.choices) + "}" if key.choices else _metavar(key)
        metavar = f"{metavar[:-1]},X}}" if key.choices and key.takes_several else metavar
        nargs = {"nargs": "+"} if several or key.takes_several else {}
        text_type = _text_or_none if key.optional else str
        group.add_argument(
            flag, type=text_type if kind is str or key.choices else _value, metavar=metavar, **nargs, **options
        )


class _KeywordArguments(ParseKwargs):
    """timm's reader of KEY=VALUE words, with a line for a word of another form."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *args: Any, **kwargs: Any) -> None:
        for word in values:
            if not word.partition("=")[0].isidentifier() or "=" not in word:
                parser.error(f"{self.option_strings[0]} takes KEY=VALUE words, got {brief(word)}")
        super().__call__(parser, namespace, values, *args, **kwargs)


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
    given = peek(words, "recipe")
    mix = given.pop("mix", None)
    try:
        chosen = {} if mix is None else {"mix": mix}
        return load_recipe(given.get("recipe", DEFAULT), chosen, allow_imports=ALLOW_IMPORTS in words)
    except UserError:
        return load_recipe(DEFAULT)


def peek(words: Sequence[str], *names: str) -> dict[str, Any]:
    """Return the values of flags with these names and of --mix, before the parser that has all flags is made.

    A flag without a value is left out here: that parser refuses it.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(f"--{name}", nargs="?")
    parser.add_argument("--mix", nargs="*")
    given, _ = parser.parse_known_args([word for word in words if word not in ("-h", "--help")])
    return {name: one_or_several(value) for name, value in vars(given).items() if value not in (None, [])}


def given_keys(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of a recipe that were given as flags, and the protocol."""
    given = vars(namespace)
    keys = settings_of(Recipe)
    own = {name: given[name] for name in (*list_keys(), PROTOCOL) if name in given}
    return mix_values({name: _one_or_several(keys[name], own[name]) if name in keys else own[name] for name in own})


def _one_or_several(key: Setting, value: Any) -> Any:
    """Return a single word that a key also takes by itself, such as ``auto``, without its list."""
    single = isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)
    return value[0] if single and value[0] in (key.choices or ()) + (AUTO,) * key.auto else value


def mix_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of flags: one word for a key of a method that takes one value or several is that one value."""
    single = {"mix", *(MIX_PREFIX + name for name in list_mix_settings() if _takes_one(name))}
    return {name: one_or_several(value) if name in single else value for name, value in flags.items()}


def one_or_several(value: Any) -> Any:
    """Return the only word of a flag that takes one or several, otherwise what was given."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _takes_one(name: str) -> bool:
    owners = [method_settings(method) for method in list_methods()]
    return any(name in own and own[name].takes_one for own in owners)


def _text_or_none(text: str) -> str | None:
    return None if text.lower() in ("none", "null", "") else text


def _value(text: str) -> Any:
    """Read a word as YAML does; what is not YAML stays text and is refused by the check of its key."""
    if not text.strip():
        return text  # YAML takes it for none, which a key may allow
    try:
        return parse_yaml("null" if text.lower() == "none" else text, where="a flag")
    except UserError:
        return text
