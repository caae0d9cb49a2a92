"""Load a trained model in one line: from the folder of a run, from an export, or from the Hub.

Only ``config.json``, ``model.safetensors`` and ``recipe.yaml`` are read, and of the configuration only what describes
the network: nothing is unpickled, and no configuration can name another file to load.
"""

from contextlib import suppress
from dataclasses import dataclass
from os.path import isdir  # of names that no file can have, Path's method raises
from pathlib import Path
from typing import Any

import timm
from torch import nn

from ..errors import HubError, UserError, brief
from ..recipe import Recipe
from ..recipe.rules import size_problem
from ..system.checked import read_json
from ..system.network import explain_hub_error, is_repo_name
from .from_run import SOURCES, load_run, read_recipe
from .weights import WEIGHTS, build, fill, read_weights

HUB, FOLDER = "hf-hub:", "local-dir:"
RECIPE = "recipe.yaml"
# The entries of a stored pretrained_cfg that are used: those that describe network, images and classes.
_DESCRIPTION = (
    "tag",
    "input_size",
    "test_input_size",
    "min_input_size",
    "fixed_input_size",
    "interpolation",
    "crop_pct",
    "test_crop_pct",
    "crop_mode",
    "mean",
    "std",
    "num_classes",
    "label_names",
    "label_descriptions",
    "pool_size",
    "global_pool",
    "first_conv",
    "classifier",
    "license",
)


@dataclass(frozen=True)
class LoadedModel:
    """A model and how it was trained.

    Attributes:
        model: in eval mode.
        recipe: the recipe of the run or the export; None for models from elsewhere.
        is_run: whether it is a run on this machine; the recipe of an export comes from its author and is not trusted.
    """

    model: nn.Module
    recipe: Recipe | None
    is_run: bool


def load(name_or_dir: str | Path) -> nn.Module:
    """Return a trained model in eval mode.

    Args:
        name_or_dir: the folder of a run, an exported folder, or ``USER/NAME`` on the Hub, with ``@REVISION`` for
            another than the newest. timm's prefixes ``hf-hub:`` and ``local-dir:`` work too. Folders come first.

    Returns:
        The model; ``timm.data.resolve_model_data_config(model)`` returns its preprocessing.

    Raises:
        HubError: there is no such model, or its files do not fit together.

    Example:
        >>> model = timm_patchup.hub.load("output/fashion_mini_hard_patchup")
    """
    return _load(find(name_or_dir)).model


def find(name_or_dir: str | Path) -> str:
    """Return the name with its prefix: ``local-dir:`` for an existing folder, else ``hf-hub:`` for ``USER/NAME``.

    Raises:
        HubError: it is neither.
    """
    name = str(name_or_dir)
    if name.startswith((HUB, FOLDER)):
        return name
    if isdir(name):
        return FOLDER + name
    if not is_repo_name(name.split("@")[0]):
        raise HubError(f"{name}: no such folder, and not a Hub name, which is USER/NAME")
    return HUB + name


def load_with_recipe(source: str) -> LoadedModel:
    """Return the model for a name with its prefix, with its recipe.

    Raises:
        HubError: there is no such model, or its files do not fit together.
    """
    found = _load(source)
    if found.run_recipe is not None:
        return LoadedModel(found.model, found.run_recipe, is_run=True)
    # Other tools have files called recipe.yaml, too.
    ours = "patchup" in found.config and (found.folder / RECIPE).is_file()
    return LoadedModel(found.model, read_recipe(found.folder) if ours else None, is_run=False)


@dataclass(frozen=True)
class _FoundModel:
    """A model in eval mode, the folder of its files, and the recipe of a run or the config.json of an export."""

    model: nn.Module
    folder: Path
    run_recipe: Recipe | None
    config: dict[str, Any]


def _load(source: str) -> _FoundModel:
    if source.startswith(HUB):
        name = source.removeprefix(HUB)
        if not is_repo_name(name.split("@")[0]):
            raise HubError(f"{source}: a model on the Hub is USER/NAME")
        return _load_export(_download(name), name)
    folder = Path(source.removeprefix(FOLDER))
    if not isdir(folder):
        raise HubError(f"{folder}: no such folder; a model on the Hub is {HUB}USER/NAME")
    if (folder / "config.json").is_file():
        return _load_export(folder, str(folder))
    model, recipe = load_run(folder)
    return _FoundModel(model.eval(), folder, recipe, {})


def read_config(folder: Path, where: str) -> dict[str, Any]:
    """Read config.json; raise HubError if it is missing or not timm's."""
    try:
        config = read_json(folder / "config.json")
    except UserError as error:
        raise HubError(f"{where}: config.json cannot be read: {error}", retry=True) from error
    if not isinstance(config.get("architecture"), str):
        raise HubError(f"{where}: config.json has no architecture, so this is not a timm model", retry=True)
    return config


def _load_export(folder: Path, where: str) -> _FoundModel:
    config = read_config(folder, where)
    stored = config.get("pretrained_cfg", config)
    arguments = config.get("model_args", {})
    if not isinstance(stored, dict) or not isinstance(arguments, dict):
        raise HubError(f"{where}: config.json is not in timm's format", retry=True)
    refused = sorted(SOURCES & arguments.keys())
    if refused:
        raise HubError(f"{where}: config.json asks for {', '.join(refused)}, which is not supported", retry=True)
    if not timm.is_model(config["architecture"]):
        missing = f"timm {timm.__version__} has no model {brief(config['architecture'])}"
        raise HubError(f"{where}: {missing}: try a newer timm", retry=True)
    described = {name: stored[name] for name in _DESCRIPTION if name in stored}
    described |= {name: config[name] for name in ("num_classes", "label_names", "label_descriptions") if name in config}
    _refuse_huge_images(described, where)
    # timm takes classes, channels and, if it is fixed, the image size from the description unless they are arguments.
    model = build(config["architecture"], {"pretrained_cfg": described, **arguments}, where=where)
    fill(model, read_weights(folder / WEIGHTS), where=where)
    _require_same_num_classes(model, described, where)
    return _FoundModel(model.eval(), folder, None, config)


def _refuse_huge_images(described: dict[str, Any], where: str) -> None:
    """Raise HubError for images that fit into no memory: networks of a fixed image size are made for them, too."""
    for prefix in ("", "test_", "min_"):
        size, crop_pct = described.get(f"{prefix}input_size"), described.get(f"{prefix}crop_pct")
        size = (
            size if isinstance(size, list) and len(size) == 3 and all(isinstance(n, int) for n in size) else [3, 1, 1]
        )
        problem = size_problem(size, crop_pct if isinstance(crop_pct, float) else 1.0)
        if problem is not None:
            raise HubError(f"{where}: config.json: {prefix}{problem}", retry=True)


def _require_same_num_classes(model: nn.Module, described: dict[str, Any], where: str) -> None:
    """Raise HubError if config.json has another number of classes than the weights.

    Since timm 1.0.31, ``model_args`` has the number of classes too and wins over the description, so that weights fit
    the network whatever the description says.
    """
    stated, own = described.get("num_classes"), getattr(model, "num_classes", None)
    if isinstance(stated, int) and stated >= 0 and stated != own:  # timm's -1 leaves it to the model
        raise HubError(f"{where}: config.json states {stated} classes, {WEIGHTS} has {own}", retry=True)


def _download(name: str) -> Path:
    """Download the files of one commit to the Hub's cache and return their folder."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    repo, _, revision = name.partition("@")
    try:
        config = Path(hf_hub_download(repo, "config.json", revision=revision or None))
        # The folder is named after the commit: all files come from the same one, whatever is pushed meanwhile.
        hf_hub_download(repo, WEIGHTS, revision=config.parent.name)
        with suppress(EntryNotFoundError):  # not one of our exports
            hf_hub_download(repo, RECIPE, revision=config.parent.name)
    except Exception as error:
        raise explain_hub_error(error, repo, doing="load") from error
    return config.parent
