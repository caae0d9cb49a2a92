"""Recipes: what the keys are (``schema``), what they need and when they contradict each other (``rules``), how a name
or a file becomes a recipe (``compose``), keys over keys and the recipes of finished runs (``layers``), the parts that
functions take (``parts``), and datasets by name (``data_names``).

Imports ``core``, ``system`` and ``errors`` only.
"""

from .compose import list_recipes, load_recipe
from .schema import Recipe

__all__ = ["Recipe", "list_recipes", "load_recipe"]
