"""The classifier under test: from a run, a folder or repository in timm's layout, or timm's registry.

Its normalisation is inside, so that it takes images in [0, 1]; it is in eval mode and nothing is mixed. Weights are
read from safetensors files.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from .. import models  # noqa: F401  (registers the nets of the paper with timm)
from ..recipe import Recipe, RecipeError
from ..training.build import build_model
from ..training.run_folder import RunFolder

WEIGHTS = "model.safetensors"
HUB, FOLDER = "hf-hub:", "local-dir:"


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
        recipe: that of the run; for a model from elsewhere one with its image keys, and no data.
        trained_here: whether the recipe says how it was trained.
        weights: a digest of its parameters and buffers.
    """

    name: str
    source: str
    classifier: Normalised
    recipe: Recipe
    trained_here: bool
    weights: str

    @property
    def num_classes(self) -> int:
        return int(self.classifier.model.num_classes)  # type: ignore[arg-type]

    def describe(self) -> dict[str, Any]:
        """Return what results.json says of the model; the name of a folder, never its path."""
        known = {"weights": self.weights, "architecture": self.recipe.model}
        if not self.trained_here:
            return known | {"source": self.source if not self.source.startswith(FOLDER) else FOLDER + self.name}
        return known | {"method": self.recipe.mix, "seed": self.recipe.seed, "recipe": self.recipe.to_dict()}


def load_subjects(sources: Sequence[str]) -> list[Subject]:
    """Load every classifier.

    Raises:
        RecipeError: those that cannot be loaded, one line each.
    """
    problems: list[str] = []
    subjects: list[Subject] = []
    for source, name in zip(sources, _names(sources)):
        try:
            subjects.append(_load(source, name))
        except RecipeError as error:
            problems += error.problems
    twice = sorted({source for source in sources if list(sources).count(source) > 1})
    problems += [f"--model {source} is given twice" for source in twice]
    if problems:
        raise RecipeError(problems)
    return subjects


def _load(source: str, name: str) -> Subject:
    if source.startswith((HUB, FOLDER)):
        model = _from_timm_layout(source)
    elif Path(source).exists() or "/" in source or source.startswith("."):
        recipe, model = _from_run(Path(source))
        return _subject(name, source, model, recipe, trained_here=True)
    else:
        model = _from_registry(source)
    config = resolve_model_data_config(model)
    keys = {
        "model": (getattr(model, "pretrained_cfg", None) or {}).get("architecture", source),
        "num_classes": model.num_classes,
        "input_size": list(config["input_size"]),
        "mean": list(config["mean"]),
        "std": list(config["std"]),
        "crop_pct": config["crop_pct"],
        "interpolation": config["interpolation"],
    }
    return _subject(name, source, model, Recipe.from_dict(keys), trained_here=False)


def _subject(name: str, source: str, model: nn.Module, recipe: Recipe, *, trained_here: bool) -> Subject:
    classifier = Normalised(model, recipe.mean, recipe.std).eval().requires_grad_(False)
    return Subject(name, source, classifier, recipe, trained_here, _digest(model))


def _from_run(folder: Path) -> tuple[Recipe, nn.Module]:
    if not folder.is_dir():
        raise RecipeError([f"--model {folder}: no such run"])
    if not (folder / "recipe.yaml").is_file():
        hint = f"; give {FOLDER}{folder} for a folder in timm's layout" if (folder / "config.json").is_file() else ""
        raise RecipeError([f"--model {folder}: no run lies there, it has no recipe.yaml{hint}"])
    file = folder / WEIGHTS
    if not file.is_file():
        raise RecipeError(
            [f"--model {folder}: the run has no {WEIGHTS} yet, go on with it: train.py --resume {folder}"]
        )
    recipe = RunFolder(folder).recipe()
    model = build_model(Recipe.from_dict(recipe.to_dict() | {"pretrained": False}))
    try:
        model.load_state_dict(load_file(file))
    except (RuntimeError, SafetensorError) as error:
        text = " ".join(str(error).split())[:200]
        raise RecipeError([f"--model {folder}: {WEIGHTS} does not fit the recipe or is damaged: {text}"]) from error
    return recipe, model


def _from_timm_layout(source: str) -> nn.Module:
    where = source.removeprefix(HUB).removeprefix(FOLDER)
    refused = f"--model {source}: no {WEIGHTS} there, and pickled weights are not loaded"
    if source.startswith(FOLDER):
        missing = [name for name in ("config.json", WEIGHTS) if not (Path(where) / name).is_file()]
        if missing:
            raise RecipeError([f"--model {source}: no {missing[0]} there" if missing[0] != WEIGHTS else refused])
    else:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        try:
            hf_hub_download(where.partition("@")[0], WEIGHTS, revision=where.partition("@")[2] or None)
        except EntryNotFoundError as error:
            raise RecipeError([refused]) from error
        except Exception as error:  # whatever the Hub's client and its transport raise
            text = " ".join(str(error).split())[:200]
            raise RecipeError([f"--model {source}: cannot be read from the Hub: {text}"]) from error
    return _created(source)


def _from_registry(name: str) -> nn.Module:
    if not timm.is_model(name.partition(".")[0]):
        near = get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise RecipeError([f"--model {name}: no such run, and timm has no such model{hint}"])
    return _created(name)


def _created(source: str) -> nn.Module:
    try:
        return timm.create_model(source, pretrained=True)
    except Exception as error:  # whatever the Hub's client, the files and the model's constructor raise
        text = " ".join(str(error).split())[:200]
        raise RecipeError([f"--model {source}: the weights cannot be loaded: {text}"]) from error


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


def _digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
