"""The registry of methods: a name, the Mixer that does it, and the paper's settings as defaults.

A method file calls ``register_method`` below its class; nothing else has to know of it.
"""

import inspect
from collections.abc import Iterable
from typing import Any

from torch import nn

from ..core.checks import check_choice
from ..core.mixer import Mixer

_METHODS: dict[str, tuple[type[Mixer], dict[str, Any]]] = {}
# Arguments that a training script has keys of its own for, or that the method's name decides.
_NOT_SETTINGS = {"mode", "num_classes", "label_smoothing", "seed"}


def register_method(name: str, mixer: type[Mixer], **defaults: Any) -> None:
    """Add a method under a name of its own."""
    if name in _METHODS:
        raise ValueError(f"method {name!r} is registered already, by {_METHODS[name][0].__name__}")
    _METHODS[name] = mixer, defaults


def list_methods() -> list[str]:
    """Return the names of all methods, sorted."""
    return sorted(_METHODS)


def method_parameters(name: str) -> dict[str, inspect.Parameter]:
    """Return the settings of a method: their names, types and defaults."""
    mixer, defaults = _METHODS[check_choice("method", name, list_methods())]
    parameters = inspect.signature(mixer).parameters.values()
    own = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    return own | {key: own[key].replace(default=value) for key, value in defaults.items()}


def list_settings(name: str | None = None) -> dict[str, inspect.Parameter]:
    """Return what a flag or a recipe may set of one method, or of any: the keys ``mix_*``, sorted."""
    names = list_methods() if name is None else [name]
    known = {key: p for method in names for key, p in method_parameters(method).items()}
    return {key: known[key] for key in sorted(set(known) - _NOT_SETTINGS)}


def check_settings(name: str, settings: Iterable[str]) -> None:
    """Raise ValueError where the method or one of the settings is unknown, naming the nearest ones."""
    known = method_parameters(name)
    for key in settings:
        check_choice(f"setting of {name}", key, known)


def create_mixer(name: str, model: nn.Module, **overrides: Any) -> Mixer:
    """Make the mixer of a method for a model.

    Args:
        name: one of ``list_methods()``.
        model: a timm model, before torch.compile or any distributed wrapper.
        **overrides: settings that differ from the method's defaults.

    Raises:
        ValueError: unknown method or setting, or a value outside its range.

    Example:
        >>> mix = create_mixer("hard_patchup", model, gamma=0.4)
    """
    check_settings(name, overrides)
    return _METHODS[name][0](model, **_METHODS[name][1] | overrides)
