"""The classifier under test: from a run, a folder or repository in timm's layout, or timm's registry.

Its normalisation is inside, so that it takes images in [0, 1]; it is in eval mode and nothing is mixed. Weights are
read from safetensors files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from ..errors import HubError, UserError, nearest
from ..recipe import Recipe
from ..runs.load import FOLDER, HUB, load_with_recipe
from ..runs.weights import weights_digest


class Normalised(nn.Module):
    """A model that takes images in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.model((images - self.mean) / self.std)


@dataclass(frozen=True)
class Subject:
    """A classifier and what is known of it.

    Attributes:
        name: what tables call it.
        source: what it was loaded from, as it was given.
        classifier: takes images in [0, 1]; in eval mode.
        recipe: that of the run or the export; for a model from elsewhere one with its image keys, and no data.
        has_recipe: whether the recipe says how it was trained.
        is_run: whether it is a run on this machine.
        weights: a digest of its parameters and buffers.
    """

    name: str
    source: str
    classifier: Normalised
    recipe: Recipe
    has_recipe: bool
    is_run: bool
    weights: str

    @property
    def num_classes(self) -> int:
        return int(self.classifier.model.num_classes)  # type: ignore[arg-type]

    def describe(self) -> dict[str, Any]:
        """Return what results.json says of the model; the name of a folder, never its path."""
        known = {"weights": self.weights, "architecture": self.recipe.model}
        if not self.is_run:
            known["source"] = FOLDER + self.name if Path(self.source.removeprefix(FOLDER)).is_dir() else self.source
        if not self.has_recipe:
            return known
        return known | {"method": self.recipe.mix, "seed": self.recipe.seed, "recipe": self.recipe.to_dict()}


def load_subjects(sources: Sequence[str]) -> list[Subject]:
    """Load every classifier.

    Raises:
        UserError: those that cannot be loaded, one line each.
    """
    problems: list[str] = []
    subjects: list[Subject] = []
    for source, name in zip(sources, _names(sources)):
        try:
            subjects.append(_load(source, name))
        except UserError as error:
            problems += error.problems
    places = [str(Path(source).resolve()) if Path(source).is_dir() else source for source in sources]
    twice = sorted({source for source, place in zip(sources, places) if places.count(place) > 1})
    problems += [f"--model {source} is given twice" for source in twice]
    if problems:
        raise UserError(problems)
    return subjects


def _load(source: str, name: str) -> Subject:
    if source.startswith((HUB, FOLDER, ".")) or "/" in source or Path(source).exists():
        known = source if source.startswith((HUB, FOLDER)) else FOLDER + source
        try:
            loaded = load_with_recipe(known)
        except HubError as error:
            raise UserError([f"--model {error}"]) from error
        if loaded.recipe is not None:
            return _subject(name, source, loaded.model, loaded.recipe, has_recipe=True, is_run=loaded.is_run)
        model = loaded.model
    else:
        model = _from_registry(source)
    return _subject(name, source, model, _image_recipe(model, source), has_recipe=False, is_run=False)


def _subject(name: str, source: str, model: nn.Module, recipe: Recipe, *, has_recipe: bool, is_run: bool) -> Subject:
    classifier = Normalised(model, recipe.mean, recipe.std).eval().requires_grad_(False)
    return Subject(name, source, classifier, recipe, has_recipe, is_run, weights_digest(model))


def _image_recipe(model: nn.Module, source: str) -> Recipe:
    """Return a recipe with nothing but the images of a model from elsewhere."""
    config = resolve_model_data_config(model)
    keys = {
        "model": (getattr(model, "pretrained_cfg", None) or {}).get("architecture", source),
        "num_classes": model.num_classes,
        "input_size": list(config["input_size"]),
        "mean": list(config["mean"]),
        "std": list(config["std"]),
        "crop_pct": config["crop_pct"],
        "crop_mode": config["crop_mode"],
        "interpolation": config["interpolation"],
    }
    try:
        return Recipe.from_dict(keys)
    except UserError as error:
        raise UserError([f"--model {source}: {problem}" for problem in error.problems]) from error


def _from_registry(name: str) -> nn.Module:
    if not timm.is_model(name.partition(".")[0]):
        hint = nearest(name, timm.list_models())
        raise UserError([f"--model {name}: no such run, and timm has no such model{hint}"])
    try:
        return timm.create_model(name, pretrained=True)
    except Exception as error:  # whatever the Hub's client, the files and the model's constructor raise
        text = " ".join(str(error).split())[:200]
        raise UserError([f"--model {name}: the weights cannot be loaded: {text}"]) from error


def _names(sources: Sequence[str]) -> list[str]:
    """Return a short name for each source: as much of the end of its path as tells it from the others."""
    parts = [source.rstrip("/").removeprefix(HUB).removeprefix(FOLDER).split("/") for source in sources]
    parts = [list(Path(source).resolve().parts) if Path(source).is_dir() else p for source, p in zip(sources, parts)]
    names = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        names.append("/".join(own[-length:]))
    return names
