"""PatchUp for timm: a mixup-style regulariser that swaps or mixes blocks of hidden feature maps."""

from importlib import import_module
from types import ModuleType

from . import models
from .core.draw import Draw
from .core.mixer import Mixer
from .core.plugin import register, unregister
from .core.sites import list_sites
from .core.task import MixTask
from .methods import create_mixer, list_methods
from .methods.patchup import PatchUp

__version__ = "0.1.0"
__all__ = [
    "Draw",
    "MixTask",
    "Mixer",
    "PatchUp",
    "create_mixer",
    "list_methods",
    "list_sites",
    "models",
    "register",
    "unregister",
]


def __getattr__(name: str) -> ModuleType:
    """Import ``timm_patchup.hub`` when it is first asked for: most programs do without."""
    if name == "hub":
        return import_module(".hub", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
