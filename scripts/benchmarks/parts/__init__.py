"""One file per table of the benchmark. A file in this folder is found by itself: it needs a ``PART``."""

import importlib
import pkgutil

from ..timing import Part

_FILES = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
PARTS: dict[str, Part] = {file.PART.name: file.PART for file in _FILES}
