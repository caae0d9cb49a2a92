"""Recipes: what the keys are (``schema``) and when they do not go together (``idle``, ``contradictions``), how a name
or a file becomes a recipe (``compose``, ``override``), recipes of finished runs (``stored``), the parts that functions
take (``parts``), and datasets by name (``data_names``).

Imports ``core``, ``system`` and ``errors`` only.
"""

from .compose import list_recipes, load_recipe
from .schema import Recipe

__all__ = ["Recipe", "list_recipes", "load_recipe"]
