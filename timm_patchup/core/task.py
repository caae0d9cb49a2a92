"""MixTask: timm's ClassificationTask around a Mixer, for timm's own training loop or any loop on ``timm.task``."""

import logging
from typing import Any

from timm.task import ClassificationTask
from torch import Tensor

from .criterion import for_soft_targets, refuse_double_smoothing
from .mixer import Mixer

_logger = logging.getLogger(__name__)


class MixTask(ClassificationTask):
    """Classification with a mixer: draw, forward, objective. Everything else is timm's.

    Labels that are dense, (B, K), are mixed as they are. For several labels per image derive from both:
    ``class Task(MixTask, MultiLabelClassificationTask)``.

    Args:
        *args: those of ``timm.task.ClassificationTask``: the model that the mixer was made for, the criterion, ...
        mixer: the mixer.
        **kwargs: those of ``timm.task.ClassificationTask``.

    Example:
        >>> task = MixTask(model, nn.CrossEntropyLoss(), mixer=PatchUp(model))
        >>> task(x, y)["loss"].backward()
    """

    def __init__(self, *args: Any, mixer: Mixer, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if mixer.model is not self.trainable_module:
            raise ValueError("mixer was made for another model: make it for the model given to MixTask")
        multi_label = getattr(self, "multi_label", False)  # timm states it from 1.0.31 on
        if multi_label and mixer.label_smoothing:
            raise ValueError(
                f"label_smoothing of the mixer ({mixer.label_smoothing}) is for one label per image: several are "
                f"smoothed by the criterion, criterion_kwargs=dict(smoothing={mixer.label_smoothing})"
            )
        refuse_double_smoothing(mixer.label_smoothing, self.criterion)
        # What cannot be used with mixed targets is refused now, not at the first altered batch.
        for_soft_targets(self.criterion, from_indices=not multi_label)
        self.mixer = mixer
        if self.verbose:
            _logger.info("MixTask: mixer=%r", mixer)

    def prepare_distributed(self, device_ids: list | None = None, **ddp_kwargs: Any) -> "MixTask":
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
        """Continue the draws where the checkpoint was written; one without this state starts them anew."""
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
