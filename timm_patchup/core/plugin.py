"""The plugin's switch: ``register()`` makes timm itself use a mixer, ``unregister()`` takes it all back.

A plain import changes nothing. The switch acts on timm's classes in place, so it also reaches code that has imported
them before, such as timm's own train.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, cast

import timm.data
import timm.task
from timm.task import ClassificationTask, TrainingTask
from torch import nn

from ..errors import UserError
from .create import PatchUp
from .method import Method
from .mixer import Mixer
from .one_of import make_methods
from .outside import import_methods
from .settings import check_value
from .task import MixTask

_MIXER_ARGUMENTS = ("num_classes", "label_smoothing", "seed")
tasks_built = 0


@dataclass(frozen=True)
class _Configured:
    """What every classification task is given."""

    method: Method
    arguments: dict[str, Any]


_configured: _Configured | None = None


class MixSettingsError(UserError):
    """A configured method or one of its settings does not fit the model or the task."""


def register(mix: str | Sequence[str] | None = None, **settings: Any) -> None:
    """Put ``PatchUp`` into ``timm.data`` and, with ``mix``, a mixer into every ``timm.task.ClassificationTask``.

    timm's task for several labels per image derives from it and is mixed, too. Can be called again to configure another
    mix. While a mix is configured, timm's other tasks refuse to start: they would run without it.

    Args:
        mix: one of ``list_methods()`` or ``"package.module:Name"``, or a list of them; None or "none" leaves
            classification tasks as they are.
        **settings: settings of the method that differ from its defaults, as for ``create_mixer``, and num_classes,
            label_smoothing or seed of the mixer.

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
    method = None if mix is None else make_methods(mix, **settings)
    _configured = None if method is None or mix == "none" else _Configured(method, arguments)
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

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        global tasks_built
        assert _configured is not None
        try:
            mixer = Mixer(model, _configured.method, **_configured.arguments)
        except UserError:
            raise
        except (TypeError, ValueError) as error:
            raise MixSettingsError(str(error)) from error
        super().__init__(model, *args, mixer=mixer, **kwargs)
        tasks_built += 1


def _configured_kind(kind: type[ClassificationTask]) -> type[ClassificationTask]:
    """Return what one of timm's classification tasks becomes while a mix is configured."""
    return _ConfiguredTask if kind is ClassificationTask else type(f"Mix{kind.__name__}", (_ConfiguredTask, kind), {})


def _switched(init: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` for one of timm's tasks that obeys the switch and otherwise calls timm's own."""

    @wraps(init)
    def switched(self: TrainingTask, *args: Any, **kwargs: Any) -> None:
        if _configured is None or isinstance(self, MixTask):
            init(self, *args, **kwargs)
        elif type(self) in _timm_inits and isinstance(self, ClassificationTask):
            # Replacing __new__ instead could not be undone: a class that once had its own keeps calling it.
            self.__class__ = _configured_kind(type(self))
            _ConfiguredTask.__init__(cast(_ConfiguredTask, self), *args, **kwargs)
        else:
            names = ", ".join(member.name for member in _configured.method.members)
            own = "" if type(self) in _timm_inits else "; derive it from MixTask"
            raise MixSettingsError(
                f"{type(self).__name__} cannot be combined with a mix ({names}): it would not be mixed{own}"
            )

    return switched


def _own_inits() -> dict[type[TrainingTask], Callable[..., None]]:
    """Return the constructors of timm's tasks, all that derive from its base class."""
    kinds = [kind for kind in vars(timm.task).values() if isinstance(kind, type) and issubclass(kind, TrainingTask)]
    return {kind: vars(kind)["__init__"] for kind in kinds if kind is not TrainingTask and "__init__" in vars(kind)}


_timm_inits = _own_inits()
