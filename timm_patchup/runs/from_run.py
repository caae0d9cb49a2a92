"""The model of a run: the network of its recipe with the weights it kept.

Its pretrained_cfg describes the images and classes it was trained on, as timm expects.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from ..data.source import HUB_PREFIX
from ..errors import HubError, UserError
from ..recipe import Recipe
from ..recipe.compose import read_resolved
from .weights import WEIGHTS, build, fill, read_weights

# Arguments of timm's factory that name a source of weights and do not describe the network.
SOURCES = frozenset(
    {"cache_dir", "checkpoint_path", "features_only", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}
)


def load_run(folder: Path) -> tuple[nn.Module, Recipe]:
    """Return the model of a run, finished or not, and its recipe.

    Raises:
        HubError: there is no run, it has no weights yet, or they do not fit the recipe.
    """
    recipe = read_recipe(folder)
    if not (folder / WEIGHTS).is_file():
        raise HubError(f"{folder}: the run has no {WEIGHTS} yet: resume it (train.py --resume {folder})")
    model = build_trained(recipe, read_weights(folder / WEIGHTS), where=str(folder))
    names = class_names(folder)
    if names is not None and len(names) == recipe.num_classes:
        cast(Any, model.pretrained_cfg)["label_names"] = names
    return model, recipe


def class_names(folder: Path) -> list[str] | None:
    """Return the names of the classes of a finished run, None if its data has none."""
    try:
        names = json.loads((folder / "results.json").read_text(encoding="utf-8"))["class_names"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return list(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def build_trained(recipe: Recipe, weights: Mapping[str, Tensor], *, where: str) -> nn.Module:
    """Return the network of a recipe with trained weights and the recipe's images and classes in its pretrained_cfg.

    Raises:
        HubError: the weights do not fit the recipe.
    """
    arguments = {"num_classes": recipe.num_classes, "in_chans": recipe.input_size[0], **network_arguments(recipe)}
    model = build(recipe.model, arguments, where=where)
    fill(model, weights, where=where)
    cfg: Any = model.pretrained_cfg
    model.pretrained_cfg = cast(Any, describe_images(cfg, recipe))
    return model


def read_recipe(folder: Path) -> Recipe:
    """Read recipe.yaml; raise HubError if it is missing or wrong."""
    path = folder / "recipe.yaml"
    if not path.is_file():
        raise HubError(f"{folder} has neither a run (recipe.yaml) nor a timm model (config.json)")
    try:
        return read_resolved(path)
    except UserError as error:
        raise HubError(f"{path}: {'; '.join(error.problems)}") from error


def network_arguments(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's ``model_kwargs`` that describe the network."""
    return {name: value for name, value in recipe.model_kwargs.items() if name not in SOURCES}


def describe_images(cfg: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return a pretrained_cfg with the images and classes of the recipe instead of the ones of timm's weights."""
    kept_in_memory = recipe.crop_padding is not None  # such images are resized whole, not cropped
    own = {
        "architecture": cfg["architecture"],
        "tag": f"{_as_word(recipe.mix_name)}_{dataset_name(recipe)}",
        "input_size": tuple(recipe.input_size),
        "fixed_input_size": bool(cfg.get("fixed_input_size")),
        "interpolation": recipe.interpolation,
        "crop_pct": 1.0 if kept_in_memory else recipe.crop_pct,
        "crop_mode": "squash" if kept_in_memory else recipe.crop_mode,
        "mean": tuple(recipe.mean),
        "std": tuple(recipe.std),
        "num_classes": recipe.num_classes,
        "pool_size": None,
        "first_conv": cfg.get("first_conv"),
        "classifier": cfg.get("classifier"),
    }
    if tuple(cfg.get("input_size", ()))[1:] == tuple(recipe.input_size)[1:]:
        own["pool_size"] = cfg.get("pool_size")
    return own


def dataset_name(recipe: Recipe) -> str:
    """Return a short name of the dataset: ``cifar10`` for ``hfds/uoft-cs/cifar10``, ``local_data`` for any path."""
    name = recipe.dataset
    if name.startswith(HUB_PREFIX):
        name = name.rsplit("/", 1)[-1]
    elif re.search(r"[/\\]", name):
        name = "local_data"
    return _as_word(name)


def _as_word(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
