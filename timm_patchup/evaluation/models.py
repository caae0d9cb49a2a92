"""The classifiers under test: from a run, a folder or repository in timm's layout, or timm's registry.

A classifier includes its normalisation, so it takes images in [0, 1]; it is in eval mode and nothing is mixed. Weights
are read from safetensors files only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import exists, isdir  # of names that no file can have, Path's methods raise
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from ..errors import HubError, UserError, nearest, one_line
from ..recipe import Recipe
from ..recipe.parts import ImageSpec
from ..runs.load import FOLDER, HUB, find, load_with_recipe
from ..runs.weights import weights_digest
from ..system.network import error_chain, is_unreachable


class NormalizedModel(nn.Module):
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
class EvalModel:
    """A classifier and what is known about it.

    Attributes:
        name: its name in tables.
        source: what it was loaded from, as given.
        classifier: takes images in [0, 1]; in eval mode.
        architecture: its name in timm's registry.
        images: how it expects its images.
        recipe: how it was trained; None if unknown.
        is_run: whether it is a run on this machine.
        weights: a digest of its parameters and buffers.
    """

    name: str
    source: str
    classifier: NormalizedModel
    architecture: str
    images: ImageSpec
    recipe: Recipe | None
    is_run: bool
    weights: str

    @property
    def network(self) -> nn.Module:
        """The model without the normalisation."""
        return self.classifier.model

    @property
    def num_classes(self) -> int:
        return int(self.network.num_classes)  # type: ignore[arg-type]

    @property
    def label_names(self) -> list[str] | None:
        """The names of the classes, None if the model does not know them."""
        names = (getattr(self.network, "pretrained_cfg", None) or {}).get("label_names")
        if not isinstance(names, (list, tuple)) or len(names) != self.num_classes:
            return None
        return [str(name) for name in names]

    def describe(self) -> dict[str, Any]:
        """Return the model's entry in results.json, with the name of a folder but never its path."""
        known: dict[str, Any] = {"weights": self.weights, "architecture": self.architecture}
        if not self.is_run:
            known["source"] = FOLDER + self.name if Path(self.source.removeprefix(FOLDER)).is_dir() else self.source
        if self.recipe is None:
            return known
        return known | {"method": self.recipe.mix_name, "seed": self.recipe.seed, "recipe": self.recipe.to_dict()}


def load_models(sources: Sequence[str]) -> list[EvalModel]:
    """Load all classifiers.

    Raises:
        UserError: one line per classifier that cannot be loaded.
    """
    problems: list[str] = []
    retry = True
    models: list[EvalModel] = []
    for source, name in zip(sources, _names(sources)):
        try:
            models.append(_load(source, name))
        except UserError as error:
            problems += error.problems
            retry = retry and error.retry
    places = [str(Path(source).resolve()) if isdir(source) else source for source in sources]
    twice = sorted({source for source, place in zip(sources, places) if places.count(place) > 1})
    problems += [f"model {source} is given twice" for source in twice]
    if problems:  # one wrong name makes the call wrong: trying again would not help
        raise UserError(problems, retry=retry and not twice)
    return models


def wrap_model(network: nn.Module) -> EvalModel:
    """Return a loaded model as a classifier; its pretrained_cfg describes the images it expects."""
    return _wrap(network, source="model", name="model")


def _load(source: str, name: str) -> EvalModel:
    if not _is_folder_or_repo(source):
        return _wrap(_from_registry(source), source=source, name=name)
    try:
        found = _find(source)
        loaded = load_with_recipe(found)
    except HubError as error:
        # A folder with damaged files is a wrong argument; what the Hub does not answer may work later.
        raise HubError(f"model {error}", retry=error.retry and not isdir(source.removeprefix(FOLDER))) from error
    return _wrap(loaded.model, source=found, name=name, recipe=loaded.recipe, is_run=loaded.is_run)


def _is_folder_or_repo(source: str) -> bool:
    return source.startswith((HUB, FOLDER, ".")) or "/" in source or exists(source)


def _find(source: str) -> str:
    """Return the name with its prefix; a name whose parent folder exists is a mistyped folder, not a repository."""
    mistyped = not exists(source) and (Path(source).is_absolute() or isdir(Path(source).parent))
    return FOLDER + source if mistyped and not source.startswith((HUB, FOLDER)) else find(source)


def _wrap(
    network: nn.Module, *, source: str, name: str, recipe: Recipe | None = None, is_run: bool = False
) -> EvalModel:
    if recipe is not None:
        architecture, images = recipe.model, ImageSpec.of(recipe)
    else:
        architecture = (getattr(network, "pretrained_cfg", None) or {}).get("architecture", source)
        images = _timm_images(network, source)
    classifier = NormalizedModel(network, images.mean, images.std).eval().requires_grad_(False)
    return EvalModel(name, source, classifier, architecture, images, recipe, is_run, weights_digest(network))


def _timm_images(model: nn.Module, source: str) -> ImageSpec:
    """Return how images are prepared according to timm's configuration of a model."""
    config = resolve_model_data_config(model)
    try:
        return ImageSpec(
            input_size=tuple(config["input_size"]),
            mean=tuple(config["mean"]),
            std=tuple(config["std"]),
            crop_pct=config["crop_pct"],
            crop_mode=config["crop_mode"],
            interpolation=config["interpolation"],
        )
    except UserError as error:
        raise UserError([f"model {source}: {problem}" for problem in error.problems]) from error


def _from_registry(name: str) -> nn.Module:
    if not timm.is_model(name.partition(".")[0]):
        hint = nearest(name, timm.list_models())
        raise UserError(f"model {one_line(name, 80)}: there is no such folder, and timm has no such model{hint}")
    try:
        return timm.create_model(name, pretrained=True)
    except Exception as error:  # whatever the Hub's client, the files and the model's constructor raise
        line = f"model {name}: cannot load its pretrained weights"
        if is_unreachable(error_chain(error)):
            way = "the Hub cannot be reached: check the network, HF_HUB_OFFLINE and HF_ENDPOINT"
            raise HubError(f"{line}: not in the Hub's cache, and {way}", retry=True) from error
        raise UserError(f"{line}: {one_line(error, 200)}; timm.list_pretrained() has the names with weights") from error


def _names(sources: Sequence[str]) -> list[str]:
    """Return a short name per source: the end of its path, as long as needed to be unique."""
    parts = [source.rstrip("/").removeprefix(HUB).removeprefix(FOLDER).split("/") for source in sources]
    parts = [list(Path(source).resolve().parts) if isdir(source) else p for source, p in zip(sources, parts)]
    names = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        names.append("/".join(own[-length:]))
    return names
