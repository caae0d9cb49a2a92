"""Recipes: what the keys are (``schema``), how a name or a file becomes a recipe (``compose``), the parts
that functions take (``parts``), and datasets by name (``data_names``).

Imports ``core`` and ``errors`` only.
"""

from .compose import list_recipes, load_recipe
from .schema import Recipe

__all__ = ["Recipe", "list_recipes", "load_recipe"]
