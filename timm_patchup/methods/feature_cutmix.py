"""Feature CutMix (Yun et al., 2019, their ablation): CutMix's rectangle, swapped at a random hidden site.

The same rectangle in every channel, and a target by the share of the map that was really swapped.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..core.checks import check_number
from ..core.draw import Place, rectangle
from ..core.mixer import Mixer
from ..core.sites import INPUT, PAPER_SITES
from .registry import register_method


class FeatureCutMix(Mixer):
    """CutMix inside a timm model.

    Args:
        model: a timm model, before torch.compile or any distributed wrapper.
        alpha: the area of the rectangle is 1 - Beta(alpha, alpha) of the map before clipping, > 0.
        prob: probability that a batch is mixed, in [0, 1].
        sites: names of sites or modules, one of which is chosen for each batch; None for stem, stage1, stage2.
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets before they are mixed, in [0, 1).
        seed: seed of the draws; each rank draws its own.

    Example:
        >>> mix = FeatureCutMix(model, sites=["stage2"])
        >>> x, target = mix(x, y)
        >>> loss = mix.loss(model(x), target)
    """

    default_sites = tuple(name for name in PAPER_SITES if name != INPUT)

    def __init__(
        self,
        model: nn.Module,
        *,
        alpha: float = 1.0,
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
        *_, height, width = place.shape
        return rectangle(height, width, alpha=self.alpha, generator=place.generator, device=place.device), 0.0


register_method("feature_cutmix", FeatureCutMix)
