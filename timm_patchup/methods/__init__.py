"""The methods, one file each, in one registry: ``list_methods()`` and ``create_mixer(name, model, **overrides)``."""

from . import cutmix, cutout, dropblock, feature_cutmix, manifold_mixup, mixup, none, patchup, puzzle_mix
from .registry import check_settings, create_mixer, list_methods, list_settings, method_parameters

__all__ = [
    "check_settings",
    "create_mixer",
    "cutmix",
    "cutout",
    "dropblock",
    "feature_cutmix",
    "list_methods",
    "list_settings",
    "manifold_mixup",
    "method_parameters",
    "mixup",
    "none",
    "patchup",
    "puzzle_mix",
]
