"""Old names of public classes: they work for one release and warn."""

import warnings
from collections.abc import Callable
from typing import Any


def renamed(module: str, **new: type) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that returns renamed classes.

    Args:
        module: name of the module.
        **new: classes by their old names.
    """

    def find(name: str) -> Any:
        if name not in new:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        kind = new[name]
        warnings.warn(f"{name} is now timm_patchup.{kind.__name__}", DeprecationWarning, stacklevel=2)
        return kind

    return find
