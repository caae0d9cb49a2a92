"""PatchUp for timm: a mixup-style regulariser that swaps or mixes blocks of hidden feature maps."""

from . import models
from .draw import Draw
from .methods import create_mixer, list_methods
from .methods.patchup import PatchUp
from .mixer import Mixer
from .plugin import register, unregister
from .sites import list_sites
from .task import MixTask

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
