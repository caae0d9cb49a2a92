"""The plugin's switch: ``register()`` makes timm itself use a mixer, ``unregister()`` takes it all back.

A plain import changes nothing. The switch acts on timm's classes in place, so it also reaches code that has imported
them before, such as timm's own train.py.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import timm.data
from timm.task import ClassificationTask, TrainingTask

from ..errors import UserError
from .create import PatchUp
from .method import Method
from .mixer import Mixer
from .one_of import make_methods
from .outside import import_methods
from .settings import check_value
from .task import DISTILLATION, MixTask, TaskMixing, timm_tasks

_MIXER_ARGUMENTS = ("num_classes", "label_smoothing", "seed", "num_splits")
tasks_built = 0


@dataclass(frozen=True)
class _Configuration:
    """What every classification task is given."""

    method: Method
    arguments: dict[str, Any]


_configured: _Configuration | None = None


class MixSettingsError(UserError):
    """A configured method or one of its settings does not fit the model or the task."""


def register(mix: str | Sequence[str] | None = None, **settings: Any) -> None:
    """Put ``PatchUp`` into ``timm.data`` and, with ``mix``, a mixer into every ``timm.task.ClassificationTask``.

    timm's tasks for several labels per image and for distillation are mixed, too, the latter at the input only. Can be
    called again to configure another mix. While a mix is configured, other tasks refuse to start: they would run
    without it.

    Args:
        mix: one of ``list_methods()`` or ``"package.module:Name"``, or a list of them; None or "none" leaves
            classification tasks as they are.
        **settings: settings of the method that differ from its defaults, as for ``create_mixer``, and num_classes,
            label_smoothing, seed or num_splits of the mixer.

    Raises:
        UserError: unknown method or setting, or a value outside of its range.

    Example:
        >>> timm_patchup.register("hard_patchup", gamma=0.4)
        >>> task = timm.task.ClassificationTask(model, criterion)  # a MixTask
    """
    global _configured
    if mix is None and settings:
        raise UserError(f"settings need a method: register(mix=NAME, {', '.join(settings)}=...)")
    arguments = {name: settings.pop(name) for name in _MIXER_ARGUMENTS if name in settings}
    import_methods(mix)
    check_value("seed", arguments.get("seed", 0), int, low=0)
    check_value("label_smoothing", arguments.get("label_smoothing", 0.0), float, low=0, below=1)
    check_value("num_classes", arguments.get("num_classes"), int | None, low=1)
    check_value("num_splits", arguments.get("num_splits", 1), int, low=1)
    method = None if mix is None else make_methods(mix, **settings)
    _configured = None if method is None or mix == "none" else _Configuration(method, arguments)
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


def _configured_mixer(init: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mixer:
    """Make the configured mixer for the model of a task, which is the first argument of each of timm's."""
    assert _configured is not None
    _, model, *_ = inspect.signature(init).bind(None, *args, **kwargs).arguments.values()
    try:
        return Mixer(model, _configured.method, **_configured.arguments)
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise MixSettingsError(str(error)) from error


def _switched(init: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` for one of timm's tasks that obeys the switch and otherwise calls timm's own."""

    @wraps(init)
    def switched(self: TrainingTask, *args: Any, **kwargs: Any) -> None:
        global tasks_built
        if _configured is None or isinstance(self, TaskMixing):
            init(self, *args, **kwargs)
        elif type(self) in _mixing_kinds:
            mixer = _configured_mixer(init, args, kwargs)
            # Replacing __new__ instead could not be undone: a class that once had its own keeps calling it.
            self.__class__ = _mixing_kinds[type(self)]
            try:
                self.__init__(*args, mixer=mixer, **kwargs)  # type: ignore[misc]
            except BaseException:
                mixer.detach()  # so that the model can be used again
                raise
            tasks_built += 1
        else:
            names = ", ".join(member.name for member in _configured.method.members)
            own = "" if type(self) in _timm_inits else "; derive it from MixTask"
            raise MixSettingsError(
                f"{type(self).__name__} cannot be combined with a mix ({names}): it would not be mixed{own}"
            )

    return switched


def _mixing(kind: type[TrainingTask]) -> type[TrainingTask]:
    """Return what one of timm's tasks becomes while a mix is configured."""
    if kind is ClassificationTask:
        return MixTask
    return type(f"Mix{kind.__name__}", (MixTask if issubclass(kind, ClassificationTask) else TaskMixing, kind), {})


_mixing_kinds = {kind: _mixing(kind) for kind in timm_tasks() if issubclass(kind, (ClassificationTask, *DISTILLATION))}
_timm_inits = {kind: vars(kind)["__init__"] for kind in timm_tasks() if "__init__" in vars(kind)}
