"""The loss of a batch: the method's objective if its samples were mixed, the criterion's own if they were not."""

import warnings

from torch import Tensor

from ..errors import UserError
from .batch import MixedBatch, check_classes
from .criterion import Criterion, for_soft_targets, is_affine, rounds_targets, takes_indices
from .functional import Objective, patchup_loss
from .method import INPUT


def own_targets(batch: MixedBatch, criterion: Criterion, *, label_smoothing: float) -> Tensor:
    """Return a batch's own targets as the criterion takes them: class indices as they came, if it can, or (B, K)."""
    as_they_came = batch.from_indices and takes_indices(criterion) and not label_smoothing
    return batch.given.long() if as_they_came else batch.own  # timm's and torch's losses take int64 alone


def unmixed_loss(output: Tensor, target: Tensor, criterion: Criterion, *, from_indices: bool) -> Tensor:
    """Return the criterion's own loss.

    Args:
        output: logits, (B, K).
        target: class indices, (B,), or distributions, (B, K).
        criterion: l(output, target).
        from_indices: whether distributions were made of class indices.
    """
    if target.ndim == 1:
        return criterion(output, target)
    if is_affine(criterion):
        check_classes(output, target)
    return for_soft_targets(criterion, from_indices=from_indices)(output, target)


def mean_loss(loss: Tensor, criterion: Criterion) -> Tensor:
    """Return a loss as one number.

    Losses per sample are averaged if the criterion is not known to be affine: a mask per sample needs them there.

    Raises:
        UserError: the criterion gives several losses otherwise.
    """
    if loss.ndim == 0:
        return loss
    if loss.ndim == 1 and not is_affine(criterion):
        return loss.mean()
    name = getattr(criterion, "__name__", type(criterion).__name__)
    raise UserError(f"{name} gives losses {tuple(loss.shape)}, mixing needs one number: make it with reduction='mean'")


def mixed_loss(output: Tensor, target: Tensor, batch: MixedBatch, criterion: Criterion) -> Tensor:
    """Return the objective of a batch whose samples were mixed.

    Args:
        output: logits of the mixed images, (B, K).
        target: W, (B, K): ``batch.target`` or a copy of it.
        batch: the batch.
        criterion: l(output, target).

    Raises:
        ValueError: output and targets differ in their classes, or a mask per sample needs a loss per sample.
    """
    kept = batch.draw.kept
    assert batch.changed is not None
    assert batch.objective is not None
    objective: Objective = "paper" if batch.objective == "authors" else batch.objective
    own_in_l2 = batch.objective == "authors" and batch.draw.site == INPUT
    soft = for_soft_targets(criterion, from_indices=batch.from_indices)
    if is_affine(criterion):
        check_classes(output, target)
        loss = soft(output, target)
        if own_in_l2:
            return loss + soft(output, batch.own.to(output.device))
        return 2.0 * loss if objective == "paper" else loss
    if rounds_targets(criterion) and (objective != "l1" or not batch.draw.swaps):
        warnings.warn(
            f"{type(criterion).__name__} rounds mixed labels to 0 and 1; hard PatchUp with objective='l1' gives it "
            f"none to round",
            stacklevel=3,
        )
    if kept.ndim == 1 and objective != "l2" and soft(output.detach(), target).shape != kept.shape:
        raise ValueError(
            "a mask per sample with this criterion needs a loss per sample: give a criterion with "
            "reduction='none', or objective='l2', or mask='batch'"
        )
    return patchup_loss(
        output,
        target=batch.own,
        changed_target=batch.changed,
        mixed_target=batch.own if own_in_l2 else target,
        kept=kept,
        criterion=soft,
        objective=objective,
    )
