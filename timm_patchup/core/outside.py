"""Methods from outside the package: ``package.module:Name`` is a class in a module of the user's own.

Importing runs code. So ``import_methods`` is called only where the user has named the method, in a call or a flag.
Before a method that a file names is imported, ``require_consent`` asks whether the user allows it. Recipes that are
only read, such as the recipes of exports, import nothing.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from os import getcwd
from typing import Any

from ..errors import UserError, brief, nearest, one_line
from .method import Method, add_method, list_methods

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_unknown_outside(name: Any) -> bool:
    """Return whether a name stands for a method from outside that has not been imported."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in list_methods()


def unknown_outside(mix: Any) -> list[str]:
    """Return the methods from outside that have not been imported, among one name or several."""
    return [name for name in (mix if isinstance(mix, (list, tuple)) else [mix]) if is_unknown_outside(name)]


def require_consent(mix: Any, *, named_in: Any, allowed: bool) -> None:
    """Raise UserError if a file names methods that would have to be imported, unless the user allows it.

    Args:
        mix: the methods that the file names: one or several.
        named_in: the file.
        allowed: whether the user allows the modules that files name.
    """
    names = [] if allowed else unknown_outside(mix)
    if names:
        modules = ", ".join(dict.fromkeys(name.partition(":")[0] for name in names))
        raise UserError(
            f"{named_in} names the method {', '.join(names)}: it would import {modules} from this environment or the "
            f"working directory, and so run code. If you trust it, give --allow-imports or --mix {' '.join(names)}; in "
            f"Python load_recipe(..., allow_imports=True)"
        )


def import_methods(mix: Any) -> None:
    """Import the methods from outside among one name or several, and register them under these names.

    Modules in the working directory are found, too, after all others.

    Raises:
        UserError: there is no such module or method, or it cannot be imported.
    """
    for name in unknown_outside(mix):
        module_name, _, kind_name = name.partition(":")
        with _working_directory_importable():
            module = _import(module_name)
        if not hasattr(module, kind_name):
            kinds = {key: value for key, value in vars(module).items() if isinstance(value, type)}
            known = [key for key, kind in kinds.items() if issubclass(kind, Method)]
            raise UserError(f"mix: {module_name} has no {brief(kind_name)}{nearest(kind_name, known)}")
        add_method(name, getattr(module, kind_name))


def _import(module_name: str) -> Any:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UserError(
                f"mix: no module {brief(error.name)} in this environment or the working directory"
            ) from None
        raise UserError(f"mix: importing {module_name} failed: {one_line(error, 200)}") from error
    except Exception as error:  # a user's module may raise anything
        raise UserError(
            f"mix: importing {module_name} failed: {type(error).__name__}: {one_line(error, 200)}"
        ) from error


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    here = getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        if here in sys.path:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]
