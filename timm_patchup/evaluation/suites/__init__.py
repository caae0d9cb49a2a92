"""The list of suites, in the order of the report. To add one, write its file and add its module to ``_MODULES``."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ...errors import UserError, brief, nearest, unknown
from ..suite import Option, Suite
from . import activations, affine, attacks, clean, corruptions, fgsm, geometry

_MODULES = (clean, affine, fgsm, activations, geometry, corruptions, attacks)
SUITES: dict[str, Suite] = {module.SUITE.name: module.SUITE for module in _MODULES}


def parse_suites(text: str) -> tuple[str, ...]:
    """Return the names in ``"clean,affine"``, each once, or the names of all suites for ``"all"``."""
    names = list(SUITES) if text == "all" else [name.strip() for name in text.split(",")]
    return tuple(dict.fromkeys(names))


def study_options(names: Iterable[str] | None = None) -> dict[str, Option]:
    """Return the options that studies have, by name, for some suites or for all."""
    suites = SUITES.values() if names is None else [SUITES[name] for name in names]
    found = [option for suite in suites for option in suite.options if option.in_study]
    return {option.name: option for option in sorted(found, key=lambda option: option.name)}


def option_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all options: those given, and the defaults of the others.

    Raises:
        UserError: an option is unknown.
    """
    defaults = {option.name: option.default for suite in SUITES.values() for option in suite.options}
    if others := [name for name in given if name not in defaults]:
        raise UserError([f"unknown option {brief(name)}{nearest(name, defaults)}" for name in others])
    return defaults | dict(given)


def suite_problems(names: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Return one line per unknown suite and per suite whose packages are not installed."""
    problems = []
    for name in names:
        if name not in SUITES:
            problems += unknown("suite", name, SUITES).problems
            continue
        suite = SUITES[name]
        replaced = {
            package for option in suite.options if options.get(option.name) is not None for package in option.replaces
        }
        missing = [package for package in suite.packages if package not in replaced and find_spec(package) is None]
        if missing:
            problems.append(f"suite {name} needs {missing[0]}: pip install 'timm-patchup[robustness]'")
    return problems
