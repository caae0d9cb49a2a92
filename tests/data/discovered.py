"""What a run would find in a folder of images."""

from pathlib import Path

from timm_patchup.data.discover import discover
from timm_patchup.recipe import Recipe, load_recipe

IMAGES = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "crop_mode": "center"}
RESIZED = {"interpolation": "bilinear", "train_interpolation": "bilinear", "batch_size": 5}


def found(folder: Path, **given: object) -> Recipe:
    """Return the recipe for a folder as a run would resolve it, without the model's keys."""
    recipe = load_recipe("finetune_none", {**IMAGES, **RESIZED, **given})
    return Recipe.from_dict(recipe.to_dict() | discover(recipe, folder).keys)


def keys(recipe: Recipe) -> tuple[object, ...]:
    return recipe.train_split, recipe.val_split, recipe.select_split, recipe.val_fraction, recipe.test_fraction
