"""The plugin's switch: ``register()`` makes timm itself use a mixer, ``unregister()`` takes it all back.

A plain import changes nothing. The switch acts on timm's classes in place, so it also reaches code that has imported
them before, such as timm's own train.py.
"""

from typing import Any

import timm.data
import timm.task
from timm.task import ClassificationTask, TrainingTask
from torch import nn

from .criterion import Criterion
from .methods import check_settings, create_mixer
from .methods.patchup import PatchUp
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
    ClassificationTask.__new__ = staticmethod(_new_task)  # type: ignore[method-assign]
    for kind in _distillation_tasks():
        kind.__new__ = staticmethod(_new_distillation_task)  # type: ignore[method-assign]


def is_configured() -> bool:
    """Return whether classification tasks are given a mixer."""
    return _configured is not None


def unregister() -> None:
    """Leave timm as it was before ``register()``; tasks that exist keep their mixer."""
    global _configured
    _configured = None
    vars(timm.data).pop(PatchUp.__name__, None)
    for kind in (ClassificationTask, *_distillation_tasks()):
        if "__new__" in vars(kind):
            delattr(kind, "__new__")


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


def _new_task(cls: type, *args: Any, **kwargs: Any) -> Any:
    return object.__new__(_ConfiguredTask if cls is ClassificationTask and _configured else cls)


def _new_distillation_task(cls: type, *args: Any, **kwargs: Any) -> Any:
    if _configured:
        raise MixSettingsError(
            f"{cls.__name__} cannot be combined with a mix ({_configured['name']}): it would not mix"
        )
    return object.__new__(cls)


def _distillation_tasks() -> list[type[TrainingTask]]:
    kinds = [getattr(timm.task, name) for name in timm.task.__all__ if name.endswith("DistillationTask")]
    return [kind for kind in kinds if isinstance(kind, type)]
