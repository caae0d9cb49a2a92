"""timm's tasks around a Mixer, for timm's own training loop or any loop on ``timm.task``.

``MixTask`` is its ClassificationTask; ``TaskMixing`` mixes that one and timm's other tasks with a classification loss.
"""

import logging
from typing import Any

import timm.task
from timm.task import ClassificationTask, TrainingTask
from torch import Tensor

from ..errors import UserError, WrongType, brief
from .loss import for_soft_targets, refuse_double_smoothing, refuse_other_splits
from .mixer import Mixer

_logger = logging.getLogger(__name__)


def timm_tasks() -> list[type[TrainingTask]]:
    """Return timm's own tasks, all that derive from its base class."""
    kinds = [kind for kind in vars(timm.task).values() if isinstance(kind, type) and issubclass(kind, TrainingTask)]
    return [kind for kind in kinds if kind is not TrainingTask]


# They hand one batch to student and teacher.
DISTILLATION = tuple(kind for kind in timm_tasks() if "Distillation" in kind.__name__)


class TaskMixing(TrainingTask):
    """What gives one of timm's tasks a mixer: put it before the task. Everything else is timm's.

    Dense labels, (B, K), are mixed as they are: ``class Task(TaskMixing, MultiLabelClassificationTask)``. With
    ``class Task(TaskMixing, LogitDistillationTask)`` student and teacher see the same mixed images.

    Args:
        *args: arguments of the task: the model that the mixer was made for, ...
        mixer: the mixer; for distillation at the input only.
        **kwargs: arguments of the task.

    Raises:
        UserError: the mixer acts inside the student, where the teacher cannot follow.
        ValueError, TypeError: the mixer or the criterion does not fit the task.
    """

    trainable_module: Any
    criterion: Any

    def __init__(self, *args: Any, mixer: Mixer, **kwargs: Any) -> None:
        if not isinstance(mixer, Mixer):
            raise WrongType(f"mixer must be a mixer such as PatchUp(model), got {brief(mixer, 60)}")
        hidden = [site.name for site in mixer.sites if site.module_name]
        if isinstance(self, DISTILLATION) and hidden:
            names = ", ".join(member.name for member in mixer.method.members)
            raise UserError(
                f"distillation cannot be combined with {names} at {', '.join(hidden)}, inside the student: "
                f"the teacher would not be mixed. At the input both see the same images: mix at the site input alone, "
                f"or with a method such as cutmix"
            )
        super().__init__(*args, **kwargs)
        if not any(module is mixer.model for module in self.trainable_module.modules()):
            raise ValueError("mixer was made for another model: make it for the model given to the task")
        multi_label = getattr(self, "multi_label", False)  # timm sets it from 1.0.31 on
        if multi_label and mixer.label_smoothing:
            raise ValueError(
                f"label_smoothing of the mixer ({mixer.label_smoothing}) is for one label per image: several are "
                f"smoothed by the criterion, criterion_kwargs=dict(smoothing={mixer.label_smoothing})"
            )
        refuse_double_smoothing(mixer.label_smoothing, self.criterion)
        refuse_other_splits(mixer.num_splits, self.criterion)
        # What cannot be used with mixed targets is refused now, not at the first altered batch.
        for_soft_targets(self.criterion, from_indices=not multi_label)
        self.mixer = mixer
        if self.verbose:
            _logger.info("%s: mixer=%r", type(self).__name__, mixer)

    def prepare_distributed(self, device_ids: list | None = None, **ddp_kwargs: Any) -> Any:
        """Wrap the model in DistributedDataParallel; on the CPU, too, where DDP takes no device ids."""
        if next(self.trainable_module.parameters()).device.type == "cpu":
            device_ids = None
        super().prepare_distributed(device_ids=device_ids, **ddp_kwargs)
        return self

    def get_task_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the state of the draws, which timm writes into its checkpoints beside the weights."""
        state = super().get_task_state(*args, **kwargs)
        return state if kwargs.get("ema") else {**state, "mixer": self.mixer.state_dict()}

    def load_task_state(self, state: dict[str, Any] | None, *args: Any, **kwargs: Any) -> None:
        """Continue the draws where the checkpoint was written; one without this state starts them again."""
        super().load_task_state(state, *args, **kwargs)
        if state and "mixer" in state and not kwargs.get("ema"):
            self.mixer.load_state_dict(state["mixer"])

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Run timm's own forward pass on the mixed images, with the objective in place of the criterion."""
        mixed, mixed_target = self.mixer(input, target)
        criterion, losses = self.criterion, []

        def objective(output: Tensor, given: Tensor) -> Tensor:
            losses.append(self.mixer.loss(output, mixed_target, criterion))
            return losses[-1]

        own = vars(self)  # found before the registered modules; the criterion is one, and stays where it is
        before = {name: own[name] for name in ("criterion",) if name in own}
        own["criterion"] = objective
        try:
            result = super().forward(mixed, target)
        finally:
            del own["criterion"]
            own.update(before)
        if len(losses) != 1:
            raise RuntimeError(f"{type(self).__name__} called its criterion {len(losses)} times, mixing needs one loss")
        return result


class MixTask(TaskMixing, ClassificationTask):
    """Classification with a mixer: draw, forward, objective.

    Args:
        *args: arguments of ``timm.task.ClassificationTask``: the model that the mixer was made for, the criterion, ...
        mixer: the mixer.
        **kwargs: arguments of ``timm.task.ClassificationTask``.

    Example:
        >>> task = MixTask(model, nn.CrossEntropyLoss(), mixer=PatchUp(model))
        >>> task(x, y)["loss"].backward()
    """
