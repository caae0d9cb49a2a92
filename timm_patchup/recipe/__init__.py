"""Recipes: what the keys are (schema), how a name becomes one (compose), how flags change it (flags)."""

from .compose import list_recipes, load_recipe
from .schema import Recipe, RecipeError

__all__ = ["Recipe", "RecipeError", "list_recipes", "load_recipe"]
