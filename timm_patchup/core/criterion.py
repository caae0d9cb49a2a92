"""What a mixer needs to know of a criterion l(output, target): does it take soft targets, and is it affine in them.

If l is affine in its target, the paper's two terms are equal, so that L1 + L2 is ``2 * l(output, W)`` and costs one
evaluation instead of three.
"""

from collections.abc import Callable

import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy, JsdCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from .functional import smooth_target

Criterion = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of logits (B, K) with class indices (B,) or distributions (B, K), mean over the batch."""
    return F.cross_entropy(output, target)


def bce_softmax(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of softmax probabilities with distributions (B, K): the loss of the authors' code."""
    return F.binary_cross_entropy(output.float().softmax(dim=1), target.float())


def is_affine(criterion: Criterion) -> bool:
    """Return whether the criterion is known to be affine in a soft target. A subclass may not be: it is not known."""
    if type(criterion) is BinaryCrossEntropy:
        return criterion.target_threshold is None
    # What compares the splits does not depend on the target.
    known = (
        nn.CrossEntropyLoss,
        nn.BCEWithLogitsLoss,
        SoftTargetCrossEntropy,
        LabelSmoothingCrossEntropy,
        JsdCrossEntropy,
    )
    return criterion in (cross_entropy, bce_softmax) or type(criterion) in known


def smoothing_of(criterion: Criterion) -> float:
    """Return the label smoothing that a criterion applies by itself."""
    criterion = criterion.cross_entropy_loss if isinstance(criterion, JsdCrossEntropy) else criterion
    return float(getattr(criterion, "smoothing", None) or getattr(criterion, "label_smoothing", None) or 0.0)


def refuse_double_smoothing(in_mixer: float, criterion: Criterion) -> None:
    """Raise ValueError if both the mixer and the criterion smooth labels."""
    if in_mixer and smoothing_of(criterion):
        raise ValueError(
            f"label smoothing is set twice, in the mixer ({in_mixer}) and in the criterion "
            f"({smoothing_of(criterion)}): leave one at 0"
        )


def refuse_other_splits(in_mixer: int, criterion: Criterion) -> None:
    """Raise ValueError if a criterion compares augmentation splits that the mixer does not know of."""
    if isinstance(criterion, JsdCrossEntropy) and criterion.num_splits != in_mixer:
        raise ValueError(
            f"JsdCrossEntropy compares {criterion.num_splits} splits of a batch, the mixer knows of {in_mixer}: give "
            f"num_splits={criterion.num_splits} to the mixer, so that all splits of a sample are mixed alike"
        )


def takes_indices(criterion: Criterion) -> bool:
    """Return whether a module of timm or torch takes class indices, with the loss of one-hot targets.

    Class weights are averaged in another way, so they are left out.
    """
    if type(criterion) is nn.CrossEntropyLoss:
        return criterion.weight is None
    return type(criterion) in (LabelSmoothingCrossEntropy, BinaryCrossEntropy, JsdCrossEntropy)


def for_soft_targets(criterion: Criterion, *, from_indices: bool = True) -> Criterion:
    """Return the criterion as it acts on soft targets (B, K).

    Two of timm's criteria smooth only class indices: for soft targets the smoothing is done here, with their formula.
    A criterion that is not timm's or torch's is called with soft targets as it is.

    Args:
        criterion: the criterion.
        from_indices: whether the targets were made of class indices. timm's BinaryCrossEntropy leaves those that came
            soft as they are, and timm's script does not take its default smoothing away for them.
    """
    if type(criterion) is JsdCrossEntropy:
        # Without smoothing its cross-entropy of the clean split is torch's, which takes soft targets, too.
        unsmoothed = JsdCrossEntropy(criterion.num_splits, criterion.alpha, smoothing=0.0)
        return lambda output, target: unsmoothed(output, smooth_target(target, smoothing_of(criterion)))
    if type(criterion) is LabelSmoothingCrossEntropy:
        return lambda output, target: F.cross_entropy(output, smooth_target(target, criterion.smoothing))
    if type(criterion) is BinaryCrossEntropy and criterion.smoothing and from_indices:
        return lambda output, target: criterion(output, smooth_target(target, criterion.smoothing))
    return criterion
