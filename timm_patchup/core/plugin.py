"""The plugin's switch: ``register()`` makes timm itself use a mixer, ``unregister()`` takes it all back.

A plain import changes nothing. The switch acts on timm's classes in place, so it also reaches code that has imported
them before, such as timm's own train.py.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

import timm.data
import timm.task
from timm.task import ClassificationTask, TrainingTask
from torch import nn

from ..methods import check_settings, create_mixer
from ..methods.patchup import PatchUp
from .criterion import Criterion
from .task import MixTask

_configured: dict[str, Any] | None = None
tasks_built = 0


class MixSettingsError(ValueError):
    """A configured method or one of its settings does not fit the model."""


def register(mix: str | None = None, **settings: Any) -> None:
    """Put ``PatchUp`` into ``timm.data`` and, with ``mix``, a mixer into every ``timm.task.ClassificationTask``.

    Can be called again to configure another mix. While a mix is configured, timm's distillation tasks refuse to start:
    they would run without it.

    Args:
        mix: one of ``list_methods()``; None or "none" leaves classification tasks as they are.
        **settings: settings of the method that differ from its defaults.

    Example:
        >>> timm_patchup.register("hard_patchup", gamma=0.4)
        >>> task = timm.task.ClassificationTask(model, criterion)  # a MixTask
    """
    global _configured
    if mix is not None:
        check_settings(mix, settings)
    elif settings:
        raise ValueError(f"settings need a method: register(mix=NAME, {', '.join(settings)}=...)")
    _configured = None if mix in (None, "none") else {"name": mix, **settings}
    setattr(timm.data, PatchUp.__name__, PatchUp)
    for kind, init in _timm_inits.items():
        kind.__init__ = _switched(init)  # type: ignore[method-assign]


def is_configured() -> bool:
    """Return whether classification tasks are given a mixer."""
    return _configured is not None


def unregister() -> None:
    """Leave timm as it was before ``register()``; tasks that exist keep their mixer."""
    global _configured
    _configured = None
    vars(timm.data).pop(PatchUp.__name__, None)
    for kind, init in _timm_inits.items():
        kind.__init__ = init  # type: ignore[method-assign]


class _ConfiguredTask(MixTask):
    """What a ClassificationTask becomes while a mix is configured: timm's arguments, our mixer."""

    def __init__(self, model: nn.Module, criterion: nn.Module | Criterion, *args: Any, **kwargs: Any) -> None:
        global tasks_built
        assert _configured is not None
        try:
            mixer = create_mixer(model=model, **_configured)
        except (TypeError, ValueError) as error:
            raise MixSettingsError(str(error)) from error
        super().__init__(model, criterion, *args, mixer=mixer, **kwargs)
        tasks_built += 1


def _switched(init: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` for one of timm's tasks that obeys the switch and else calls timm's own."""

    @wraps(init)
    def switched(self: TrainingTask, *args: Any, **kwargs: Any) -> None:
        if not _configured or (isinstance(self, ClassificationTask) and type(self) is not ClassificationTask):
            init(self, *args, **kwargs)
        elif isinstance(self, ClassificationTask):
            # Replacing __new__ instead could not be undone: a class that once had its own keeps calling it.
            self.__class__ = _ConfiguredTask
            _ConfiguredTask.__init__(cast(_ConfiguredTask, self), *args, **kwargs)
        else:
            name = _configured["name"]
            raise MixSettingsError(f"{type(self).__name__} cannot be combined with a mix ({name}): it would not mix")

    return switched


def _own_inits() -> dict[type[TrainingTask], Callable[..., None]]:
    names = [name for name in timm.task.__all__ if name.endswith(("ClassificationTask", "DistillationTask"))]
    kinds = [getattr(timm.task, name) for name in names]
    return {kind: vars(kind)["__init__"] for kind in kinds if "__init__" in vars(kind)}


_timm_inits = _own_inits()
