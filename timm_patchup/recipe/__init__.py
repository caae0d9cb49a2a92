"""Recipes: what the keys are (schema), how a name becomes one (compose), how flags change it (flags)."""

from ..errors import UserError
from .compose import list_recipes, load_recipe
from .schema import Recipe

__all__ = ["Recipe", "UserError", "list_recipes", "load_recipe"]
