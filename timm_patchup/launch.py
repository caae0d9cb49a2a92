"""Run timm's own train.py, unmodified, with a mixer: ``timm-patchup path/to/train.py --mix hard_patchup [flags]``.

The script's parser gets our flags, so that they are in its args.yaml and work in its ``-c`` files, and its
ClassificationTask becomes a MixTask. Under several processes: ``torchrun -m timm_patchup.launch path/to/train.py ...``
or ``accelerate launch -m timm_patchup.launch path/to/train.py ...``. ``--recipe NAME`` hands a recipe to the script.
"""

import argparse
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from .cli.command import flags_given_twice, print_errors, report
from .cli.for_timm import for_timm
from .cli.recipe_flags import ALLOW_IMPORTS, ALLOW_IMPORTS_HELP, add_mix_flags, mix_values, named_recipe, peek
from .core import plugin
from .core.method import list_methods
from .core.outside import import_methods, require_consent
from .errors import Failed, UserError, nearest
from .recipe import Recipe, load_recipe
from .recipe.layers import override, without_retired
from .recipe.schema import MIX_PREFIX
from .system.checked import read_yaml
from .system.output import say

COMMAND = "timm-patchup"
_EXAMPLES = (
    "timm-patchup path/to/train.py --mix hard_patchup --mix-gamma 0.5 --model resnet50 --data-dir data/imagenet",
    "timm-patchup path/to/train.py --recipe imagenet_soft_patchup --data-dir data/imagenet",
    "torchrun --nproc-per-node 8 -m timm_patchup.launch path/to/train.py --mix hard_patchup ...",
)
# timm's flags that a mix cannot be combined with, and why.
_CONFLICTS = {
    "naflex_loader": "NaFlex gives patches instead of images",
    "torchscript": "hooks do not run in TorchScript; use --torchcompile",
    "mixup_off_epoch": "timm passes the epoch to its own mixup only; our loop has it (scripts/train.py)",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run a training script under a mixer; exit with one line if the call is wrong. The script's errors pass."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0] in ("-h", "--help"):
        say("Run timm's own train.py, unmodified, with PatchUp or another method mixing inside the model.", "")
        say("usage: timm-patchup path/to/train.py --mix NAME [the script's own flags]")
        say("       timm-patchup path/to/train.py --help    shows the script's flags with ours")
        say(f"methods: {', '.join(list_methods())}", "examples:", *(f"  {line}" for line in _EXAMPLES))
        raise SystemExit(0)
    try:
        if not argv or argv[0].startswith("-"):
            raise UserError("the script comes first: timm-patchup path/to/train.py --mix NAME [the script's own flags]")
        _run(argv)
    except UserError as error:
        raise SystemExit(report(COMMAND, error)) from error


def _run(argv: list[str]) -> None:
    script = Path(argv[0])
    if not script.is_file():
        where = "https://github.com/huggingface/pytorch-image-models/blob/main/train.py"
        raise UserError(f"no such script: {argv[0]}. timm's train.py is not in its wheel: download it from {where}")
    saved_argv, saved_path, saved_parse = sys.argv, list(sys.path), argparse.ArgumentParser.parse_args
    sys.argv = list(argv)
    sys.path[0] = str(script.resolve().parent)
    parsed: list[argparse.Namespace] = []
    argparse.ArgumentParser.parse_args = _parse_with_mix(saved_parse, parsed)  # type: ignore[method-assign]
    built_before = plugin.tasks_built
    plugin.register()
    try:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ended:
            if ended.code or {"-h", "--help"} & set(argv):
                raise
        if not parsed:
            raise Failed(f"{script.name} ended without parsing arguments with timm's --model: nothing was mixed")
        if plugin.is_configured() and plugin.tasks_built == built_before:
            raise Failed(f"{script.name} ended without creating a timm.task.ClassificationTask: nothing was mixed")
    finally:
        argparse.ArgumentParser.parse_args = saved_parse  # type: ignore[method-assign]
        sys.argv, sys.path[:] = saved_argv, saved_path
        plugin.unregister()


def _parse_with_mix(parse_args: Callable[..., Any], parsed: list[argparse.Namespace]) -> Callable[..., Any]:
    """Wrap parse_args: the first parser that has timm's ``--model`` gets our flags and configures the plugin.

    What it parsed is appended to ``parsed``. Its errors are one line, without the usage of the script's many flags.
    """

    def parse(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        if parsed or "--model" not in self._option_string_actions:
            return parse_args(self, *args, **kwargs)
        words = args[0] if args else kwargs.get("args")
        words = sys.argv[1:] if words is None else words
        self.error = _refuse  # type: ignore[method-assign]
        self.set_defaults(**_own_keys_of_file())
        mix = peek(words).get("mix")
        if mix is None:
            mix = self._defaults.get("mix")
            require_consent(mix, named_in=_config_file(), allowed=ALLOW_IMPORTS in words)
        named_recipe(words)  # so that settings from outside are flags
        with suppress(UserError):  # reported with the flags
            import_methods(mix)
        keys = add_mix_flags(
            self.add_argument_group("PatchUp", "mixing inside the network (timm_patchup)"), default=None
        )
        _apply_file(self, keys)
        _add_recipe(self, words)
        defaults = {key: self.get_default(key) for key in keys}
        print_errors(COMMAND, flags_given_twice(self, words), 0)
        namespace = parse_args(self, *args, **kwargs)
        vars(namespace).pop("allow_imports", None)  # consent is given on the command line: args.yaml has none
        _configure(namespace, defaults)
        parsed.append(namespace)
        return namespace

    return parse


def _refuse(message: str) -> NoReturn:
    raise UserError(message)


def _config_file() -> str | None:
    """Return the script's ``-c`` file."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-c", "--config", nargs="?")
    return parser.parse_known_args()[0].config


def _own_keys_of_file() -> dict[str, Any]:
    """Return our keys in the script's ``-c`` file: a script may leave out keys that its parser does not know."""
    path = _config_file()
    values = read_yaml(Path(path)) if path and Path(path).is_file() else None  # a missing one is the script's to report
    return {key: values[key] for key in values if _is_own(key)} if isinstance(values, dict) else {}


def _apply_file(parser: argparse.ArgumentParser, keys: Sequence[str]) -> None:
    """Give our flags, which set these keys, the values of the ``-c`` file, which was read before they were added."""
    stored = without_retired(parser._defaults)
    if unknown := [key for key in stored if _is_own(key) and key not in keys]:
        raise UserError([f"{key} is not a setting of any method{nearest(key, keys)}" for key in unknown])
    parser.set_defaults(**{name: stored.get(name) for name in parser._defaults})


def _is_own(key: Any) -> bool:
    return key == "mix" or str(key).startswith(MIX_PREFIX)


def _add_recipe(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Make a recipe, if one is named, the defaults of the script: its flags and its ``-c`` file override them."""
    help_text = "a recipe of timm_patchup, by name or file: defaults for all other flags"
    parser.add_argument("--recipe", metavar="NAME|FILE", help=help_text)
    parser.add_argument(ALLOW_IMPORTS, action="store_true", help=ALLOW_IMPORTS_HELP)
    given, from_file = peek(words, "recipe", "model"), dict(parser._defaults)
    source = given.pop("recipe", None)
    if source is None:
        return
    # Another method or model replaces the recipe's, together with its settings.
    chosen = {key: value for key in ("model", "mix") if (value := given.get(key, from_file.get(key)))}
    known = {action.dest for action in parser._actions}
    num_processes = int(os.environ.get("WORLD_SIZE", 1))
    recipe = load_recipe(source, chosen, allow_imports=ALLOW_IMPORTS in words)
    values, remarks = for_timm(recipe, known=known, num_processes=num_processes)
    parser.set_defaults(**{key: value for key, value in values.items() if key not in from_file})
    if int(os.environ.get("RANK", 0)) == 0:
        for remark in remarks:
            say(f"{COMMAND}: {remark}", stream=sys.stderr)


def _configure(namespace: argparse.Namespace, defaults: dict[str, Any]) -> None:
    """Configure the plugin as the flags ask; ``defaults`` come from a recipe or a file, and flags override them."""
    if not namespace.mix:
        raise UserError(f"--mix or --recipe is missing: choose a method from {', '.join(list_methods())}")
    flags = {key: getattr(namespace, key) for key in defaults if getattr(namespace, key) != defaults[key]}
    values = override({key: value for key, value in defaults.items() if value is not None}, mix_values(flags))
    import_methods(values["mix"])
    recipe = Recipe.from_dict(mix_values(values))
    weights = {} if recipe.mix_weights is None else {"weights": recipe.mix_weights}
    splits, seed = getattr(namespace, "aug_splits", 0) or 1, getattr(namespace, "seed", 0)
    plugin.register(recipe.mix, seed=seed, num_splits=splits, **weights, **recipe.mix_settings)
    for key, why in _CONFLICTS.items():
        if plugin.is_configured() and getattr(namespace, key, None):
            names = " ".join(recipe.methods)
            raise UserError(f"--{key.replace('_', '-')} cannot be combined with --mix {names}: {why}")
    # Defaults are written out, too: args.yaml then records all that was used, even if a later version changes them.
    resolved = recipe.to_dict()
    for key in defaults:
        setattr(namespace, key, resolved.get(key))


if __name__ == "__main__":
    main()
