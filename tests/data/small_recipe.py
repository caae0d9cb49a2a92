"""A recipe small enough for data tests."""

from timm_patchup.recipe import Recipe, load_recipe


def small(**overrides: object) -> Recipe:
    held_out = {} if "val_per_class" in overrides else {"val_fraction": 0.1}
    return load_recipe("fashion_mini_none", {"batch_size": 20, **held_out, **overrides})
