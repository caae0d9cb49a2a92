"""The list of suites, in the order of the report. To add one, write its file and add its module to ``_MODULES``."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ...errors import UserError, brief, nearest
from ..suite import Suite
from . import activations, affine, attacks, clean, corruptions, fgsm, geometry

_MODULES = (clean, affine, fgsm, activations, geometry, corruptions, attacks)
SUITES: dict[str, Suite] = {module.SUITE.name: module.SUITE for module in _MODULES}


def parse_suites(text: str) -> tuple[str, ...]:
    """Return the names in ``"clean,affine"``, each once, or those of all suites for ``"all"``."""
    names = list(SUITES) if text == "all" else [name.strip() for name in text.split(",")]
    return tuple(dict.fromkeys(names))


def option_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all options: those given, and the defaults of the others.

    Raises:
        UserError: an option is unknown.
    """
    defaults = {option.name: option.default for suite in SUITES.values() for option in suite.options}
    unknown = [name for name in given if name not in defaults]
    if unknown:
        raise UserError([f"unknown option {brief(name)}{nearest(name, defaults)}" for name in unknown])
    return defaults | dict(given)


def suite_problems(names: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Return one line per unknown suite and per suite whose packages are not installed."""
    problems = []
    for name in names:
        if name not in SUITES:
            problems.append(f"unknown suite {brief(name)}, choose from {', '.join(SUITES)}{nearest(name, SUITES)}")
            continue
        suite = SUITES[name]
        replaced = {
            package for option in suite.options if options.get(option.name) is not None for package in option.replaces
        }
        missing = [package for package in suite.packages if package not in replaced and find_spec(package) is None]
        if missing:
            problems.append(f"suite {name} needs {missing[0]}: pip install 'timm-patchup[robustness]'")
    return problems
