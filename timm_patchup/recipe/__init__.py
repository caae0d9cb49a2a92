"""Recipes: what the keys are (``schema``), how a name or a file becomes a recipe (``compose``), data by name.

Imports ``core``, ``methods`` and ``errors`` only.
"""

from .compose import list_recipes, load_recipe
from .schema import Recipe

__all__ = ["Recipe", "list_recipes", "load_recipe"]
