"""Input Mixup (Zhang et al., 2018): every image becomes a weighted sum of itself and another one.

At the input, and with one lam for the batch, as ``timm.data.Mixup`` does; the partner is a random permutation instead
of the batch reversed, so that odd batches are legal.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_number
from ..draw import beta
from ..mixer import Mixer
from ..sites import INPUT, FeatureMap, Site
from .registry import register_method


class Mixup(Mixer):
    """Input Mixup; any model will do.

    Args:
        model: the model.
        alpha: lam ~ Beta(alpha, alpha), > 0; small values mix little.
        prob: probability that a batch is mixed, in [0, 1].
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets before they are mixed, in [0, 1).
        seed: seed of the draws; each rank draws its own.

    Example:
        >>> mix = Mixup(model, alpha=0.2)
        >>> x, target = mix(x, y)
        >>> loss = mix.loss(model(x), target)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        alpha: float = 1.0,
        prob: float = 1.0,
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.alpha = check_number("alpha", alpha, low=0.0, low_open=True)
        super().__init__(
            model, prob=prob, sites=[INPUT], num_classes=num_classes, label_smoothing=label_smoothing, seed=seed
        )

    def settings(self) -> dict[str, Any]:
        return {"alpha": self.alpha} | super().settings()

    def alter(
        self,
        site: Site,
        features: FeatureMap,
        batch_size: int,
        generator: torch.Generator,
        device: torch.device,
    ) -> tuple[Tensor, float]:
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device), beta(self.alpha, generator)


register_method("mixup", Mixup)
