"""A model in one line: from the folder of a run, from an export, or from the Hub.

Only ``config.json`` and ``model.safetensors`` are read, and of the configuration only what builds the network: nothing
is ever unpickled and no configuration can name another file to load.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import timm
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from .. import models  # noqa: F401, registers the nets that a configuration may name
from ..data.source import HUB_PREFIX
from ..recipe import Recipe, RecipeError
from ..training.run_folder import RunFolder

REPO = re.compile(r"[\w.-]+/[\w.-]+")
WEIGHTS = "model.safetensors"
# Arguments of timm's factory that say where weights come from, not what the network is.
_SOURCES = frozenset(
    {"cache_dir", "checkpoint_path", "features_only", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}
)
# Of a stored pretrained_cfg only what describes images and classes is taken over.
_DESCRIPTION = (
    "tag",
    "input_size",
    "fixed_input_size",
    "interpolation",
    "crop_pct",
    "crop_mode",
    "mean",
    "std",
    "num_classes",
    "label_names",
    "label_descriptions",
    "pool_size",
    "license",
)


class HubError(ValueError):
    """What went wrong with an export, a push or a load, in one line with the next step."""

    def __init__(self, message: str, *, code: int = 1) -> None:
        self.code = code
        super().__init__(" ".join(message.split()))


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
    name = str(name_or_dir)
    local, hub = name.removeprefix("local-dir:"), name.removeprefix("hf-hub:")
    if hub == name and Path(local).is_dir():
        folder = Path(local)
        if (folder / "config.json").is_file():
            return _load_export(folder, local)
        return load_run(folder).eval()
    if local != name or not REPO.fullmatch(hub.split("@")[0]):
        raise HubError(f"{local}: no such folder; a model of the Hub is USER/NAME", code=2)
    return _load_export(_download(hub), hub)


def load_run(folder: Path) -> nn.Module:
    """Return the model of a run with the weights it kept, described as the recipe has it."""
    if RunFolder(folder).state() not in ("unfinished", "finished"):
        raise HubError(f"{folder} holds neither a run (recipe.yaml) nor an export (config.json)", code=2)
    try:
        recipe = RunFolder(folder).recipe()
    except RecipeError as error:
        raise HubError(f"{folder}/recipe.yaml: {error}", code=2) from error
    model = build(
        recipe.model,
        {"num_classes": recipe.num_classes, "in_chans": recipe.input_size[0], **network_arguments(recipe)},
        where=str(folder),
    )
    fill(model, read_weights(folder / WEIGHTS), where=str(folder))
    cfg: Any = model.pretrained_cfg
    model.pretrained_cfg = cast(Any, describe_images(cfg, recipe))
    return model


def network_arguments(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's ``model_kwargs`` that make the network what it is."""
    return {name: value for name, value in recipe.model_kwargs.items() if name not in _SOURCES}


def describe_images(cfg: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return a pretrained_cfg with the recipe's images and classes in place of those of timm's weights."""
    kept_in_memory = recipe.crop_padding is not None  # such images are resized whole, never cropped
    own = {
        "architecture": cfg["architecture"],
        "tag": f"{recipe.mix}_{dataset_name(recipe)}",
        "input_size": tuple(recipe.input_size),
        "fixed_input_size": bool(cfg.get("fixed_input_size")),
        "interpolation": recipe.interpolation,
        "crop_pct": 1.0 if kept_in_memory else recipe.crop_pct,
        "crop_mode": "squash" if kept_in_memory else "center",
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
    """Return a short name of the data: ``cifar10`` for ``hfds/uoft-cs/cifar10``; of a local path it tells nothing."""
    name = recipe.dataset
    if name.startswith(HUB_PREFIX):
        name = name.rsplit("/", 1)[-1]
    elif re.search(r"[/\\]", name):
        name = "local_data"
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def build(architecture: str, arguments: Mapping[str, Any], *, where: str) -> nn.Module:
    """Make an untrained network; raise HubError where timm cannot."""
    try:
        return timm.create_model(architecture, pretrained=False, **arguments)
    except Exception as error:  # each family complains in its own way
        text = " ".join(str(error).split())[:200]
        raise HubError(f"{where}: timm {timm.__version__} cannot make {architecture!r}: {text}") from error


def fill(model: nn.Module, weights: Mapping[str, Tensor], *, where: str) -> None:
    """Load all weights, no more and no fewer; raise HubError where they do not fit."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        text = " ".join(str(error).split())[:200]
        raise HubError(f"{where}: {WEIGHTS} does not fit the network: {text}") from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; raise HubError where it is missing or damaged."""
    if not path.is_file():
        raise HubError(f"{path.parent} has no {WEIGHTS}: only safetensors are read, pickles never are")
    try:
        return load_file(path)
    except (SafetensorError, OSError, KeyError) as error:
        raise HubError(f"{path} cannot be read: {error}") from error


def read_config(folder: Path, where: str) -> dict[str, Any]:
    """Read config.json; raise HubError where it is missing or is not timm's."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HubError(f"{where}: config.json cannot be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise HubError(f"{where}: config.json names no architecture of timm, so this is no timm model")
    return config


def _load_export(folder: Path, where: str) -> nn.Module:
    config = read_config(folder, where)
    stored = config.get("pretrained_cfg", config)
    arguments = config.get("model_args", {})
    if not isinstance(stored, dict) or not isinstance(arguments, dict):
        raise HubError(f"{where}: config.json is not in timm's format")
    refused = sorted(_SOURCES & arguments.keys())
    if refused:
        raise HubError(f"{where}: config.json asks for {', '.join(refused)}, which this package does not follow")
    if not timm.is_model(config["architecture"]):
        raise HubError(f"{where}: timm {timm.__version__} has no model {config['architecture']!r}; is it too old?")
    classes = config.get("num_classes", stored.get("num_classes"))
    settings = {**({} if classes is None else {"num_classes": classes}), **arguments}
    model = build(config["architecture"], settings, where=where)
    fill(model, read_weights(folder / WEIGHTS), where=where)
    described = {name: stored[name] for name in _DESCRIPTION if name in stored}
    described |= {name: config[name] for name in ("label_names", "label_descriptions") if name in config}
    cfg: Any = model.pretrained_cfg
    model.pretrained_cfg = cast(Any, {**cfg, **described})
    return model.eval()


def _download(name: str) -> Path:
    """Fetch the two files of one commit into the Hub's cache and return their folder."""
    from huggingface_hub import hf_hub_download

    from .failures import explain

    repo, _, revision = name.partition("@")
    try:
        config = Path(hf_hub_download(repo, "config.json", revision=revision or None))
        # The folder is named after the commit: both files are of the same one, whatever is pushed meanwhile.
        hf_hub_download(repo, WEIGHTS, revision=config.parent.name)
    except Exception as error:
        raise explain(error, repo, doing="load") from error
    return config.parent
