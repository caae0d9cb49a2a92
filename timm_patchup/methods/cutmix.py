"""CutMix (Yun et al., 2019): one rectangle of every image is swapped with that of another image.

Feature CutMix at the input alone. One rectangle for the batch, and a target by the area that was really swapped
(clipped at the border), as ``timm.data.Mixup`` has it; the partner is a random permutation instead of the batch
reversed.
"""

from torch import nn

from ..core.sites import INPUT
from .feature_cutmix import FeatureCutMix
from .registry import register_method


class CutMix(FeatureCutMix):
    """CutMix at the input; any model will do.

    Args:
        model: the model.
        alpha: the area of the rectangle is 1 - Beta(alpha, alpha) of the image before clipping, > 0.
        prob: probability that a batch is mixed, in [0, 1].
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets before they are mixed, in [0, 1).
        seed: seed of the draws; each rank draws its own.

    Example:
        >>> mix = CutMix(model, prob=0.4)
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
        super().__init__(
            model,
            alpha=alpha,
            prob=prob,
            sites=[INPUT],
            num_classes=num_classes,
            label_smoothing=label_smoothing,
            seed=seed,
        )


register_method("cutmix", CutMix)
