"""Recipes as a user asks for them, for the tests of recipes: by flags, and wrongly."""

import argparse
from pathlib import Path

import pytest

from timm_patchup.cli.recipe_flags import add_recipe_flags
from timm_patchup.errors import UserError
from timm_patchup.recipe import load_recipe


def flags(words: str = "") -> argparse.ArgumentParser:
    """Return a parser of all keys."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_recipe_flags(parser, words.split())
    return parser


def problems(source: str | Path = "fashion_mini_none", **overrides: object) -> list[str]:
    """Return the lines with which a recipe is refused."""
    with pytest.raises(UserError) as caught:
        load_recipe(source, overrides)
    return caught.value.problems
