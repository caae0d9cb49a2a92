"""The registry of methods: a name, the Mixer that does it, and the paper's settings as defaults.

A method file calls ``register_method`` below its class; nothing else has to know of it.
"""

import inspect
from typing import Any

from torch import nn

from ..checks import check_choice
from ..mixer import Mixer

_METHODS: dict[str, tuple[type[Mixer], dict[str, Any]]] = {}


def register_method(name: str, mixer: type[Mixer], **defaults: Any) -> None:
    """Add a method under a name of its own."""
    if name in _METHODS:
        raise ValueError(f"method {name!r} is registered already, by {_METHODS[name][0].__name__}")
    _METHODS[name] = mixer, defaults


def list_methods() -> list[str]:
    """Return the names of all methods, sorted."""
    return sorted(_METHODS)


def method_defaults(name: str) -> dict[str, Any]:
    """Return every setting of a method with its default."""
    mixer, defaults = _METHODS[check_choice("method", name, list_methods())]
    parameters = {}
    for kind in reversed(mixer.__mro__[:-1]):
        parameters.update(inspect.signature(kind.__init__).parameters)
    settings = {p.name: p.default for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    return settings | defaults


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
    settings = method_defaults(name)
    for key in overrides:
        check_choice(f"setting of {name}", key, settings)
    return _METHODS[name][0](model, **_METHODS[name][1] | overrides)
