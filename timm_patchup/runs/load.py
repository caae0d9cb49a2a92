"""A model in one line: from the folder of a run, from an export, or from the Hub.

Only ``config.json``, ``model.safetensors`` and ``recipe.yaml`` are read, and of the configuration only what builds the
network: nothing is ever unpickled and no configuration can name another file to load.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from torch import nn

from ..errors import HubError, HubFailed
from ..recipe import Recipe
from ..system.network import explain_hub_error, is_repo_name
from .from_run import SOURCES, load_run, read_recipe
from .weights import WEIGHTS, build, fill, read_weights

HUB, FOLDER = "hf-hub:", "local-dir:"
RECIPE = "recipe.yaml"
# Of a stored pretrained_cfg only what describes network, images and classes is taken over.
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
class Loaded:
    """A model and how it was trained.

    Attributes:
        model: in eval mode.
        recipe: of a run, or of an export that has one; None for models from elsewhere.
        is_run: whether the recipe is that of a run on this machine; one that came with an export says what its author
            wanted it to say.
    """

    model: nn.Module
    recipe: Recipe | None
    is_run: bool


def load(name_or_dir: str | Path) -> nn.Module:
    """Return a trained model in eval mode.

    Args:
        name_or_dir: the folder of a run, an exported folder, or ``USER/NAME`` on the Hub, with ``@REVISION`` if it is
            not the newest. timm's prefixes ``hf-hub:`` and ``local-dir:`` are understood, too. A folder comes first.

    Returns:
        The model; ``timm.data.resolve_model_data_config(model)`` says how its images are made.

    Raises:
        HubError: there is no such model, or its files do not fit together.

    Example:
        >>> model = timm_patchup.hub.load("output/fashion_mini_hard_patchup")
    """
    return _load(find(name_or_dir))[0]


def find(name_or_dir: str | Path) -> str:
    """Return the name with its prefix: ``local-dir:`` for a folder that is there, else ``hf-hub:`` for ``USER/NAME``.

    Raises:
        HubError: it can be neither.
    """
    name = str(name_or_dir)
    if name.startswith((HUB, FOLDER)):
        return name
    if Path(name).is_dir():
        return FOLDER + name
    if not is_repo_name(name.split("@")[0]):
        raise HubError(f"{name}: no such folder, and no name of the Hub, which is USER/NAME")
    return HUB + name


def load_with_recipe(source: str) -> Loaded:
    """Return what a name with its prefix stands for.

    Raises:
        HubError: there is no such model, or its files do not fit together.
    """
    model, folder = _load(source)
    if not (folder / "config.json").is_file():
        return Loaded(model, read_recipe(folder), is_run=True)
    ours = "patchup" in read_config(folder, str(folder))  # what others call recipe.yaml is nothing to us
    return Loaded(model, read_recipe(folder) if ours and (folder / RECIPE).is_file() else None, is_run=False)


def _load(source: str) -> tuple[nn.Module, Path]:
    """Return the model, in eval mode, and the folder that its files lie in."""
    if source.startswith(HUB):
        name = source.removeprefix(HUB)
        if not is_repo_name(name.split("@")[0]):
            raise HubError(f"{source}: a model of the Hub is USER/NAME")
        folder = _download(name)
        return _load_export(folder, name), folder
    folder = Path(source.removeprefix(FOLDER))
    if not folder.is_dir():
        raise HubError(f"{folder}: no such folder; a model of the Hub is {HUB}USER/NAME")
    if (folder / "config.json").is_file():
        return _load_export(folder, str(folder)), folder
    return load_run(folder)[0].eval(), folder


def read_config(folder: Path, where: str) -> dict[str, Any]:
    """Read config.json; raise HubError where it is missing or is not timm's."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HubFailed(f"{where}: config.json cannot be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise HubFailed(f"{where}: config.json names no architecture of timm, so this is no timm model")
    return config


def _load_export(folder: Path, where: str) -> nn.Module:
    config = read_config(folder, where)
    stored = config.get("pretrained_cfg", config)
    arguments = config.get("model_args", {})
    if not isinstance(stored, dict) or not isinstance(arguments, dict):
        raise HubFailed(f"{where}: config.json is not in timm's format")
    refused = sorted(SOURCES & arguments.keys())
    if refused:
        raise HubFailed(f"{where}: config.json asks for {', '.join(refused)}, which this package does not follow")
    if not timm.is_model(config["architecture"]):
        raise HubFailed(f"{where}: timm {timm.__version__} has no model {config['architecture']!r}; is it too old?")
    described = {name: stored[name] for name in _DESCRIPTION if name in stored}
    described |= {name: config[name] for name in ("num_classes", "label_names", "label_descriptions") if name in config}
    # From the description timm takes classes, channels and, where it is fixed, the size of the images.
    model = build(config["architecture"], {"pretrained_cfg": described, **arguments}, where=where)
    fill(model, read_weights(folder / WEIGHTS), where=where)
    return model.eval()


def _download(name: str) -> Path:
    """Fetch the files of one commit into the Hub's cache and return their folder."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    repo, _, revision = name.partition("@")
    try:
        config = Path(hf_hub_download(repo, "config.json", revision=revision or None))
        # The folder is named after the commit: all files are of the same one, whatever is pushed meanwhile.
        hf_hub_download(repo, WEIGHTS, revision=config.parent.name)
        with suppress(EntryNotFoundError):  # it is none of ours
            hf_hub_download(repo, RECIPE, revision=config.parent.name)
    except Exception as error:
        raise explain_hub_error(error, repo, doing="load") from error
    return config.parent
