"""No mixing: the baseline, with the targets, the loss and the switches of every other method."""

from typing import Any

from torch import nn

from ..core.mixer import Mixer
from ..core.sites import INPUT
from .registry import register_method


class NoMix(Mixer):
    """Leave every batch as it is; any model will do.

    Args:
        model: the model.
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets, in [0, 1).
        seed: taken and not used, so that methods can be exchanged.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            model, prob=0.0, sites=[INPUT], num_classes=num_classes, label_smoothing=label_smoothing, seed=seed
        )

    def settings(self) -> dict[str, Any]:
        return {"label_smoothing": self.label_smoothing}


register_method("none", NoMix)
