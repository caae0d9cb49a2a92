"""Starting from pretrained weights: a local file of them, a classifier that starts at zero, frozen modules.

timm does the work: the file is handed to its loader, which renames tensors and drops a classifier of other classes.
"""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from timm.models import get_pretrained_cfg, load_state_dict
from timm.utils import freeze
from torch import Tensor, nn

from ..errors import DataError, UserError, one_line


def from_file(path: Path, model: str, num_classes: int, overlay: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return an overlay of timm's pretrained_cfg that loads a local file: safetensors, or a pickle of tensors only.

    Args:
        path: the file.
        model: the name of the model.
        num_classes: its classes. A classifier with this number is kept, whatever number timm's weights have.
        overlay: other entries.

    Raises:
        UserError: the file cannot be read, or has more than tensors and plain values in it.
    """
    try:
        weights = load_state_dict(str(path), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, SafetensorError, OSError, ValueError, EOFError) as error:
        if "weights_only" in str(error):  # torch's message explains how to load it anyway
            way = "if you trust the file, load it with torch and save its state_dict as safetensors"
            raise UserError(f"pretrained_path {path} has more than tensors, so it is not loaded: {way}") from error
        raise UserError(f"pretrained_path {path} cannot be read: {one_line(error, 200)}") from error
    classifier = getattr(get_pretrained_cfg(model), "classifier", None)
    name = classifier[0] if isinstance(classifier, (tuple, list)) else classifier
    head = weights.get(f"{name}.weight")
    kept = {"num_classes": num_classes} if head is not None and len(head) == num_classes else {}
    return {**(overlay or {}), **kept, "state_dict": weights}


def require_loaded(model: nn.Module, path: Path) -> None:
    """Require the weights of ``from_file`` in the model, and drop them from its configuration: they are large.

    timm accepts missing tensors once the classifier is replaced: a file of another network would leave the model
    random. Tensors are compared by their sums, since timm may rename and reshape them.

    Raises:
        UserError: most of the model's weights are not from the file.
    """
    stored = cast(Any, model.pretrained_cfg).pop("state_dict")
    in_file = {(tensor.numel(), _sum(tensor)) for tensor in stored.values() if isinstance(tensor, Tensor)}
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    loaded = sum((parameter.numel(), _sum(parameter)) in in_file for parameter in matrices)
    if loaded < 0.9 * (len(matrices) - 2):  # a new classifier and input layer may differ
        raise UserError(
            f"pretrained_path {path} has {loaded} of the {len(matrices)} weights of {type(model).__name__}: "
            f"it is a file of another network: check --model, or choose another file"
        )


def _sum(tensor: Tensor) -> float:
    return float(tensor.detach().double().sum())


def zero_head(model: nn.Module) -> None:
    """Set the classifier of a model to zero, so that its first gradients do not disturb pretrained features.

    Raises:
        UserError: the model has no linear classifier.
    """
    heads = cast(Any, model).get_classifier()
    heads = heads if isinstance(heads, (tuple, list)) else [heads]
    layers = [layer for head in heads for layer in head.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    if not layers:
        raise UserError(f"head_init zero: {type(model).__name__} has no linear classifier, use head_init timm")
    for layer in layers:
        nn.init.zeros_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def freeze_modules(model: nn.Module, names: Sequence[str]) -> None:
    """Freeze the parameters of modules. Norm layers there still follow the statistics of the batches.

    Raises:
        UserError: there is no such module.
    """
    known = dict(model.named_modules())
    missing = [name for name in names if name not in known or name == ""]
    if missing:
        children = ", ".join(name for name, _ in model.named_children())
        raise UserError(f"freeze: the model has no module {', '.join(missing)}; its parts are {children}")
    # timm would replace frozen norm layers by others, whose weights a plain model could not load.
    freeze(model, list(names), include_bn_running_stats=False)


def class_weights(wanted: str | Sequence[float] | None, labels: Tensor, num_classes: int) -> Tensor | None:
    """Return the weight of each class (K,): as given, or balanced, N / (K n_c) for n_c of N training images.

    Balanced weights average 1 over the training images, so the learning rate keeps its meaning.

    Raises:
        DataError: balanced weights of a class without training images.
    """
    if wanted is None:
        return None
    if not isinstance(wanted, str):
        return torch.tensor(list(wanted), dtype=torch.float32)
    counts = np.bincount(labels.numpy(), minlength=num_classes)
    if not counts.all():
        raise DataError(f"class_weight balanced: class {int(counts.argmin())} has no training images")
    return torch.from_numpy(len(labels) / (num_classes * counts)).float()
