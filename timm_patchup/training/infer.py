"""Recipes for your own data: resolve keys that are ``auto`` from the images and the model.

``resolve`` returns a recipe without ``auto`` and without paths, so that what a run records is complete, can be
repeated anywhere and can be shared.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import resolve_model_data_config

from ..core.settings import AUTO, settings_of
from ..data.discover import discover, folder_name
from ..errors import UserError, brief, nearest, one_line
from ..recipe import Recipe
from ..recipe.data_names import find_data_spec

_IMAGE_KEYS = ("input_size", "mean", "std", "crop_pct", "crop_mode", "interpolation")


@dataclass(frozen=True)
class ResolvedRecipe:
    """A recipe in which nothing is left to find out.

    Attributes:
        recipe: has neither ``auto`` nor a path.
        pretrained_path: the local file of pretrained weights, None for timm's own.
        note: what was inferred, one line; empty if nothing was.
    """

    recipe: Recipe
    pretrained_path: Path | None = None
    note: str = ""


def resolve(recipe: Recipe, data_dir: str | Path | None) -> ResolvedRecipe:
    """Replace every ``auto`` of a recipe, and the path of its weights by their name.

    Args:
        recipe: the recipe.
        data_dir: the folder of the images, None for a dataset of the Hub.

    Raises:
        UserError: the data, the model or the file of weights is missing or does not answer the question.
    """
    path = None if recipe.pretrained_path is None else Path(recipe.pretrained_path)
    if path is not None and not path.is_file():
        raise UserError(f"pretrained_path {path}: no such file; give the path of the weights (--pretrained-path)")
    keys: dict[str, Any] = {} if path is None else {"pretrained_path": path.name}
    notes = []
    if set(recipe.unresolved) - {*_IMAGE_KEYS, "train_interpolation"}:
        found = discover(recipe, data_dir)
        keys |= found.keys
        notes.append(found.summary)
    if set(recipe.unresolved) & {*_IMAGE_KEYS, "train_interpolation"}:
        images = {name: value for name, value in _images_of(recipe).items() if name in recipe.unresolved}
        known = settings_of(Recipe)
        idle = {name for name in images if (needs := known[name].needs) and needs(recipe)}
        keys |= images | {name: known[name].default for name in idle}
        notes.append(f"{_describe({name: images[name] for name in images if name not in idle})} from {recipe.model}")
    resolved = Recipe.from_dict(recipe.to_dict() | keys) if keys else recipe
    named = name_after_folder(resolved, data_dir)
    if named != resolved:
        notes.append(f"{named.num_classes} classes, other than in {resolved.dataset}: recorded as {named.dataset}")
    return ResolvedRecipe(named, path, "; ".join(notes))


def name_after_folder(recipe: Recipe, data_dir: str | Path | None) -> Recipe:
    """Return the recipe with the name of the folder as dataset, if the one it names has another number of classes.

    A model card must not claim that a model was trained on the dataset that the recipe was written for.
    """
    known = find_data_spec(recipe.dataset)
    if data_dir is None or known is None or known.num_classes == recipe.num_classes:
        return recipe
    return replace(recipe, dataset=folder_name(Path(data_dir)))


def _images_of(recipe: Recipe) -> dict[str, Any]:
    """Return how the model's pretrained weights expect their images, as keys of a recipe."""
    if not timm.is_model(recipe.model):
        raise UserError(f"model: timm has no model {brief(recipe.model)}{nearest(recipe.model, timm.list_models())}")
    try:
        with torch.device("meta"):
            model = timm.create_model(recipe.model, pretrained=False, **recipe.model_kwargs)
    except Exception as error:  # model constructors raise all kinds of errors
        raise UserError(f"model: timm cannot create {brief(recipe.model)}: {one_line(error, 300)}") from error
    config = resolve_model_data_config(model)
    images = {name: list(config[name]) if isinstance(config[name], tuple) else config[name] for name in _IMAGE_KEYS}
    given = recipe.interpolation if recipe.interpolation != AUTO else images["interpolation"]
    return images | {"train_interpolation": given}


def _describe(images: dict[str, Any]) -> str:
    shown = {"input_size": "size", "mean": "mean", "std": "std", "crop_pct": "crop", "interpolation": "resized"}
    texts = {name: value if isinstance(value, list) else [value] for name, value in images.items()}
    return ", ".join(
        f"{word} {' '.join(f'{one:g}' if isinstance(one, float) else str(one) for one in texts[name])}"
        for name, word in shown.items()
        if name in texts
    )
