"""MixTask: timm's ClassificationTask around a Mixer, for timm's own training loop or any loop on ``timm.task``."""

import logging
from typing import Any

import torch
from timm.task import ClassificationTask
from torch import Tensor, nn

from .criterion import Criterion, for_soft_targets, refuse_double_smoothing, takes_indices
from .mixer import Mixer

_logger = logging.getLogger(__name__)


class MixTask(ClassificationTask):
    """Classification with a mixer: draw, forward, objective. Everything else is timm's.

    Args:
        model: the model that the mixer was made for.
        criterion: any of timm's or torch's classification losses, or a loss on soft targets.
        mixer: the mixer.
        device: device of the task, as timm's.
        dtype: dtype of the task, as timm's.
        verbose: log what is used.

    Example:
        >>> task = MixTask(model, nn.CrossEntropyLoss(), mixer=PatchUp(model))
        >>> task(x, y)["loss"].backward()
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module | Criterion,
        *,
        mixer: Mixer,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        verbose: bool = True,
    ) -> None:
        if mixer.model is not model:
            raise ValueError("mixer was made for another model: make it for the model given to MixTask")
        refuse_double_smoothing(mixer.label_smoothing, criterion)
        for_soft_targets(criterion)  # refuses what mixing takes apart now, not at the first altered batch
        super().__init__(model, criterion, device=device, dtype=dtype, verbose=verbose)
        self.mixer = mixer
        if verbose:
            _logger.info("MixTask: mixer=%r", mixer)

    def prepare_distributed(self, device_ids: list | None = None, **ddp_kwargs: Any) -> "MixTask":
        """Wrap the model in DistributedDataParallel; on the CPU, too, where DDP takes no device ids."""
        if next(self.trainable_module.parameters()).device.type == "cpu":
            device_ids = None
        super().prepare_distributed(device_ids=device_ids, **ddp_kwargs)
        return self

    def get_task_state(self, module: nn.Module | None = None, ema: bool = False) -> dict[str, Any]:
        """Return the state of the draws, which timm writes into its checkpoints beside the weights."""
        return {} if ema else {"mixer": self.mixer.state_dict()}

    def load_task_state(
        self,
        state: dict[str, Any] | None,
        strict: bool = True,
        module: nn.Module | None = None,
        ema: bool = False,
    ) -> None:
        """Go on drawing where the checkpoint was written; one without this state starts the draws anew."""
        if state and "mixer" in state and not ema:
            self.mixer.load_state_dict(state["mixer"])

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Mix, run the model and return ``loss`` and ``output``."""
        mixed_input, mixed_target = self.mixer(input, target)
        output = self.trainable_module(mixed_input)
        mixed = self.mixer.draw is not None and self.mixer.draw.mixes
        # A batch whose samples are not mixed has timm's own loss to the last bit, on the targets as they came.
        if not mixed and not self.mixer.label_smoothing and takes_indices(self.criterion):
            mixed_target = target
        return {"loss": self.mixer.loss(output, mixed_target, self.criterion), "output": output}
