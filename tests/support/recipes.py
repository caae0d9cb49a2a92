"""Recipes for tests that go through all of them: recipes for the user's images get images."""

from typing import Any

from timm_patchup.recipe import Recipe, load_recipe

# What a run would find in a folder of photos and in the model.
FOUND: dict[str, Any] = {
    "dataset": "photos",
    "train_split": "train",
    "val_split": "test",
    "select_split": None,
    "val_fraction": 0.1,
    "test_fraction": 0.0,
    "input_key": "image",
    "target_key": "label",
    "num_classes": 10,
    "input_size": [3, 224, 224],
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
    "crop_pct": 0.875,
    "crop_mode": "center",
    "interpolation": "bicubic",
    "train_interpolation": "bicubic",
}


def load_complete(name: str) -> Recipe:
    """Return a recipe without ``auto`` and without weights to download."""
    recipe = load_recipe(name)
    if not recipe.unresolved:
        return recipe
    assert set(recipe.unresolved) == set(FOUND), "every key that may be auto is, in recipes for own images"
    return load_recipe(name, FOUND | {"pretrained": False})
