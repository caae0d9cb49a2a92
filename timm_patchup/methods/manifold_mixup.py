"""Manifold Mixup (Verma et al., 2019): Mixup of all features at a random site, the input among them.

One lam and one partner for each sample of a batch, whatever the site.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.checks import check_number
from ..core.draw import Place, beta
from ..core.mixer import Mixer
from .registry import register_method


class ManifoldMixup(Mixer):
    """Manifold Mixup inside a timm model.

    Args:
        model: a timm model, before torch.compile or any distributed wrapper.
        alpha: lam ~ Beta(alpha, alpha), > 0.
        prob: probability that a batch is mixed, in [0, 1].
        sites: names of sites or modules, one of which is chosen for each batch; None for input, stem, stage1, stage2.
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets before they are mixed, in [0, 1).
        seed: seed of the draws; each rank draws its own.

    Example:
        >>> mix = ManifoldMixup(model, alpha=1.5)
        >>> x, target = mix(x, y)
        >>> loss = mix.loss(model(x), target)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        alpha: float = 2.0,
        prob: float = 1.0,
        sites: Sequence[str] | None = None,
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.alpha = check_number("alpha", alpha, low=0.0, low_open=True)
        super().__init__(
            model, prob=prob, sites=sites, num_classes=num_classes, label_smoothing=label_smoothing, seed=seed
        )

    def settings(self) -> dict[str, Any]:
        return {"alpha": self.alpha} | super().settings()

    def alter(self, place: Place) -> tuple[Tensor, float]:
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=place.device), beta(self.alpha, place.generator)


register_method("manifold_mixup", ManifoldMixup)
