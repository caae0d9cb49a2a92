"""What a mixer needs to know about a criterion l(output, target): whether it takes soft targets and is affine in them.

If l is affine in its target, the paper's two terms are equal, so that L1 + L2 is ``2 * l(output, W)`` and costs one
evaluation instead of three.
"""

import copy
from collections.abc import Callable

import timm.loss
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy, JsdCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from .functional import smooth_target

Criterion = Callable[[Tensor, Tensor], Tensor]


def _of_timm(*names: str) -> tuple[type[nn.Module], ...]:
    """Return those of timm's losses that the installed release has."""
    return tuple(getattr(timm.loss, name) for name in names if hasattr(timm.loss, name))


# What is not in these lists is not known: it gets soft targets, in the general form of the objective.
_AFFINE = (
    nn.CrossEntropyLoss,
    nn.BCEWithLogitsLoss,
    SoftTargetCrossEntropy,
    LabelSmoothingCrossEntropy,
    JsdCrossEntropy,  # what compares the splits does not depend on the target
    *_of_timm("PolyCrossEntropy"),
)
# Losses of soft targets that smooth class indices only.
_SMOOTH_INDICES = (BinaryCrossEntropy, *_of_timm("PolyCrossEntropy"))
# Losses that smooth whatever they are given.
_SMOOTH_EVERYTHING = _of_timm("AsymmetricLossMultiLabel", "PolyBinaryCrossEntropy", "DistributionBalancedLoss")
# Losses for which a label is there or not: what is mixed counts from one half on.
_ROUND_TARGETS = _of_timm("TwoWayLoss", "ZlprLoss")
_TAKE_INDICES_ONLY = (nn.NLLLoss, nn.MultiMarginLoss, *_of_timm("AsymmetricLossSingleLabel"))


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
    return criterion in (cross_entropy, bce_softmax) or type(criterion) in _AFFINE


def rounds_targets(criterion: Criterion) -> bool:
    """Return whether a loss of timm rounds mixed labels to 0 and 1."""
    return type(criterion) in _ROUND_TARGETS


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
    return type(criterion) in (LabelSmoothingCrossEntropy, JsdCrossEntropy, *_SMOOTH_INDICES)


def for_soft_targets(criterion: Criterion, *, from_indices: bool = True) -> Criterion:
    """Return the criterion as it acts on soft targets (B, K).

    Some of timm's criteria smooth only class indices: for soft targets the smoothing is done here, with their formula.
    A criterion that is not timm's or torch's is called with soft targets as it is.

    Args:
        criterion: the criterion.
        from_indices: whether the targets were made of class indices. Those that came soft, such as the labels of a
            multi-label task, are smoothed by the criterion alone, if it does that.

    Raises:
        TypeError: the criterion cannot be used with mixed targets.
    """
    name = type(criterion).__name__
    if type(criterion) is JsdCrossEntropy:
        # Without smoothing its cross-entropy of the clean split is torch's, which takes soft targets, too.
        plain, smoothing = JsdCrossEntropy(criterion.num_splits, criterion.alpha, 0.0), smoothing_of(criterion)
        return lambda output, target: plain(output, smooth_target(target, smoothing))
    if isinstance(criterion, _TAKE_INDICES_ONLY):
        raise TypeError(
            f"{name} takes class indices only, mixed targets are distributions: it cannot be used with mixing"
        )
    if type(criterion) is LabelSmoothingCrossEntropy:
        return lambda output, target: F.cross_entropy(output, smooth_target(target, criterion.smoothing))
    smoothing = smoothing_of(criterion) if from_indices and _is_timms(criterion) else 0.0
    if smoothing and type(criterion) in _SMOOTH_INDICES:
        unsmoothed = copy.copy(criterion)
        unsmoothed.smoothing = 0.0  # type: ignore[attr-defined]
        return lambda output, target: unsmoothed(output, smooth_target(target, smoothing))
    if smoothing and type(criterion) not in _SMOOTH_EVERYTHING:
        raise TypeError(
            f"how {name} smooths mixed targets is not known: make it with smoothing 0 and give label_smoothing="
            f"{smoothing} to the mixer"
        )
    return criterion


def _is_timms(criterion: Criterion) -> bool:
    return type(criterion).__module__.startswith("timm.")
