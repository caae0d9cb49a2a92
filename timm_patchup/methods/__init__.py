"""The methods, one small file per method or pair of near ones; ``README.md`` has a card for each.

Every module in this folder is imported here, so a new file registers itself. Imports ``core`` and ``errors`` only.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
