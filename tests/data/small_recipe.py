"""A recipe small enough for data tests."""

from timm_patchup.recipe import Recipe, load_recipe


def small(**overrides: object) -> Recipe:
    return load_recipe("fashion_mini_none", {"batch_size": 20, **overrides})
