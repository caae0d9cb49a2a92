"""PatchUp for timm: a mixup-style regulariser that swaps or mixes blocks of hidden feature maps.

Importing the package loads ``core``, ``methods`` and ``models`` only, which need torch and timm; ``timm_patchup.hub``
and the commands import the rest when they are used. ``README.md`` next to this file is the map of the code.
"""

from importlib import import_module
from types import ModuleType

from . import methods, models
from .core.attach import detach
from .core.create import PatchUp, create_mixer
from .core.draw import Change, Draw, DrawContext, Erase, Mix
from .core.method import Method, SiteMethod, list_methods, register_method
from .core.mixer import Mixer
from .core.one_of import OneOf
from .core.plugin import register, unregister
from .core.schedule import Schedule
from .core.settings import on, setting
from .core.sites import list_sites
from .core.task import MixTask
from .errors import UserError
from .methods.cutmix import CutMix, FeatureCutMix
from .methods.cutout import Cutout
from .methods.dropblock import DropBlock
from .methods.manifold_mixup import ManifoldMixup, Mixup
from .methods.no_mix import NoMix
from .methods.patchup import HardPatchUp, SoftPatchUp
from .methods.puzzle_mix import PuzzleMix

__version__ = "0.5.0"
__all__ = [
    "Change",
    "CutMix",
    "Cutout",
    "Draw",
    "DrawContext",
    "DropBlock",
    "Erase",
    "FeatureCutMix",
    "HardPatchUp",
    "ManifoldMixup",
    "Method",
    "Mix",
    "MixTask",
    "Mixer",
    "Mixup",
    "NoMix",
    "OneOf",
    "PatchUp",
    "PuzzleMix",
    "Schedule",
    "SiteMethod",
    "SoftPatchUp",
    "UserError",
    "create_mixer",
    "detach",
    "list_methods",
    "list_sites",
    "methods",
    "models",
    "on",
    "register",
    "register_method",
    "setting",
    "unregister",
]


def __getattr__(name: str) -> ModuleType:
    """Import ``timm_patchup.hub`` when it is first used: most programs do without."""
    if name == "hub":
        return import_module(".hub", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "hub"})
