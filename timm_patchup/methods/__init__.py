"""The methods, one file each, in one registry: ``list_methods()`` and ``create_mixer(name, model, **overrides)``."""

from . import none, patchup
from .registry import create_mixer, list_methods, method_defaults

__all__ = ["create_mixer", "list_methods", "method_defaults", "none", "patchup"]
