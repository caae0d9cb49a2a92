"""Input Mixup (Zhang et al., 2018): every image becomes a weighted sum of itself and another one.

Manifold Mixup at the input alone. One lam for the batch, as ``timm.data.Mixup`` has it; the partner is a random
permutation instead of the batch reversed, so that odd batches are legal.
"""

from torch import nn

from ..core.sites import INPUT
from .manifold_mixup import ManifoldMixup
from .registry import register_method


class Mixup(ManifoldMixup):
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
        super().__init__(
            model,
            alpha=alpha,
            prob=prob,
            sites=[INPUT],
            num_classes=num_classes,
            label_smoothing=label_smoothing,
            seed=seed,
        )


register_method("mixup", Mixup)
