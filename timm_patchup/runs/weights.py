"""A network and its weights, strictly: a safetensors file that fits by name and shape, or one clear line.

All loading ends here, from a run, an export or the Hub. Nothing is unpickled.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from .. import models  # noqa: F401, registers the nets that a configuration may name
from ..errors import HubError, brief, one_line

WEIGHTS = "model.safetensors"


def build(architecture: str, arguments: Mapping[str, Any], *, where: str) -> nn.Module:
    """Make an untrained network; raise HubError if timm cannot."""
    try:
        return timm.create_model(architecture, pretrained=False, **arguments)
    except Exception as error:  # model constructors raise all kinds of errors
        text = f"timm {timm.__version__} cannot create {brief(architecture)}: {one_line(error, 200)}"
        raise HubError(f"{where}: {text}", retry=True) from error


def fill(model: nn.Module, weights: Mapping[str, Tensor], *, where: str) -> None:
    """Load the weights; raise HubError unless they fit the network by name and shape."""
    try:
        model.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise HubError(f"{where}: {WEIGHTS} does not fit the network: {one_line(error, 200)}", retry=True) from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; raise HubError if it is missing or damaged."""
    if not path.is_file():
        raise HubError(f"{path.parent} has no {WEIGHTS}: only safetensors files are loaded, never pickles", retry=True)
    try:
        return load_file(path)
    except (SafetensorError, OSError, KeyError) as error:
        raise HubError(f"{path} is damaged: {error}", retry=True) from error


def weights_digest(model: nn.Module) -> str:
    """Return a short digest of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
