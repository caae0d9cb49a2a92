"""The loss of a batch: what its targets are, what a criterion makes of them, and the method's objective.

``MixedBatch`` is what a mixer keeps of a batch until its loss is taken; the targets that a mixer returned carry the
number of theirs. If a criterion l(output, target) is affine in its target, the paper's two terms are equal, so that
L1 + L2 is ``2 * l(output, W)`` and costs one evaluation instead of three.
"""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from math import inf

import timm.loss
import torch
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy, JsdCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from ..errors import UserError
from .draw import INPUT, Draw
from .functional import MethodObjective, Objective, mix_targets, patchup_loss, smooth_target, soft_target

Criterion = Callable[[Tensor, Tensor], Tensor]


def _of_timm(*names: str) -> tuple[type[nn.Module], ...]:
    """Return the losses of timm that the installed release has."""
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


def read_targets(
    x: Tensor,
    target: Tensor,
    num_classes: int | None,
    *,
    label_smoothing: float,
    num_splits: int,
    check_values: bool,
) -> Tensor:
    """Return the targets of a batch as distributions, float32 (B, K).

    Args:
        x: images, (B, C, H, W).
        target: int (B,) class indices, or float (B, K).
        num_classes: K, None if nobody has stated it.
        label_smoothing: in [0, 1).
        num_splits: number of splits: the batch holds all samples once, then the same samples again.
        check_values: whether to look at the values of targets, which waits for an accelerator.

    Raises:
        TypeError, ValueError: images and targets are not a batch, or do not fit the number of classes or splits.
    """
    _require_batch(x, target)
    if num_splits > 1:
        _require_splits(target, num_splits, look=check_values)
    if target.ndim == 2:
        if num_classes and target.shape[1] != num_classes:
            raise ValueError(
                f"target has {target.shape[1]} columns, num_classes is {num_classes}: "
                f"give num_classes={target.shape[1]} to the mixer if the targets are right"
            )
        if check_values:
            # Neither holds for NaN.
            low, high = (value.item() for value in target.detach().float().aminmax())
            if not (low >= 0.0 and high < inf):
                raise ValueError(
                    f"target has values from {low:g} to {high:g}, distributions and labels (B, K) need finite values "
                    f"of at least 0"
                )
        return soft_target(target, target.shape[1], label_smoothing=label_smoothing)
    if not num_classes:
        raise ValueError(
            "class indices need the number of classes, which the model does not state: give num_classes= to the mixer"
        )
    if check_values:
        lowest, highest = int(target.min()), int(target.max())
        if lowest < 0 or highest >= num_classes:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(
                f"target has the label {wrong}, allowed are 0 to num_classes - 1 = {num_classes - 1}: "
                f"check the labels, or give num_classes= to the mixer"
            )
    return soft_target(target.long(), num_classes, label_smoothing=label_smoothing)


def _require_batch(x: Tensor, target: Tensor) -> None:
    """Raise TypeError or ValueError if images and targets are not a batch."""
    if isinstance(x, dict) and "patches" in x:
        raise TypeError(
            "x is a NaFlex batch (a dict with patches), whose images have grids of their own and no places in common: "
            "mixing needs images (B, C, H, W) of one size"
        )
    if not isinstance(x, Tensor) or x.ndim != 4 or not x.is_floating_point():
        raise TypeError(f"x must be a floating point tensor (B, C, H, W), got {_describe(x)}")
    _require_plain("x", x)
    if len(x) == 0:
        raise ValueError(f"x is an empty batch of shape {tuple(x.shape)}: mixing needs at least one sample")
    no_target = not isinstance(target, Tensor) or target.dtype is torch.bool
    if no_target or target.ndim != (2 if target.is_floating_point() else 1):
        raise TypeError(f"target must be int (B,) class indices or float (B, K) distributions, got {_describe(target)}")
    _require_plain("target", target)
    if len(target) != len(x):
        raise ValueError(f"target has {len(target)} rows, x has {len(x)} samples: give one target per sample")


def _require_splits(target: Tensor, num_splits: int, *, look: bool) -> None:
    """Raise ValueError if a batch is not made of splits: all samples once, then all of them again.

    Args:
        target: of the whole batch, (B,) or (B, K).
        num_splits: number of splits.
        look: whether to compare the targets, which waits for an accelerator.
    """
    if len(target) % num_splits:
        raise ValueError(f"a batch of {len(target)} cannot be divided into num_splits = {num_splits} splits")
    first, *others = target.chunk(num_splits)
    if look and not all(torch.equal(first, other) for other in others):
        raise ValueError(
            f"the targets of num_splits = {num_splits} splits differ: a batch holds all samples once, then the same "
            f"samples again for the next split"
        )


def require_logits(output: object) -> None:
    """Raise TypeError if the output of a model is not the tensor of its logits."""
    if not isinstance(output, Tensor):
        field = next((name for name in ("logits", "out") if isinstance(getattr(output, name, None), Tensor)), None)
        hint = f": give output.{field}" if field else ""
        raise TypeError(f"output must be the tensor of logits (B, K), got {type(output).__name__}{hint}")


def require_same_classes(output: Tensor, target: Tensor) -> None:
    """Raise UserError if logits and targets, both (B, K), have different shapes."""
    if output.shape != target.shape:
        given, needed = tuple(output.shape), tuple(target.shape)
        hint = (
            ""
            if given[1:] == needed[1:]
            else f": if the model has a new head, give num_classes={given[-1]} to the mixer"
        )
        raise UserError(f"output is {given}, but the targets are {needed}; both must be (B, K){hint}")


def _require_plain(name: str, value: Tensor) -> None:
    """Raise TypeError for tensors that have no values, or none at most of their places."""
    if value.is_nested or value.layout is not torch.strided or value.is_meta:
        kind = "nested" if value.is_nested else "meta" if value.is_meta else "sparse"
        raise TypeError(f"{name} is a {kind} tensor, mixing needs a dense one with values")


def _describe(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


_numbers = count()


@dataclass(frozen=True)
class MixedBatch:
    """What a call of a mixer decided.

    Attributes:
        draw: what was drawn.
        given: the targets as they came.
        own: the targets as distributions, (B, K): y.
        smoothed: whether the mixer smoothed them.
        objective: what the method which acted compares; None if samples are not mixed.
        images: the images as they came, if the method adds to the loss of the batch; otherwise None.
    """

    draw: Draw
    given: Tensor
    own: Tensor
    smoothed: bool = False
    objective: MethodObjective | None = None
    images: Tensor | None = None
    number: int = field(default_factory=lambda: next(_numbers), init=False)

    @cached_property
    def _mixed(self) -> tuple[Tensor, Tensor]:
        """Y, the targets of the altered features, and W, the targets of the batch."""
        draw = self.draw
        return mix_targets(self.own, draw.partner, kept=draw.kept, lam=draw.lam) if draw.mixes else (self.own, self.own)

    @cached_property
    def target(self) -> Tensor:
        """What the mixer returns: W, or y if samples are not mixed."""
        target = self._mixed[1]
        if target is not self.given:
            target._mixed_batch = self.number  # type: ignore[attr-defined]
        return target

    @property
    def from_indices(self) -> bool:
        """Whether the targets came as class indices."""
        return self.given.ndim == 1

    @property
    def two_labels(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Each sample's label, its partner's, both int64 (B,), and the weight of the first, 0-d or (B,).

        The target is their weighted sum. None if targets did not come as class indices.
        """
        if not self.from_indices:
            return None
        draw, labels = self.draw, self.given.long()
        weight = draw.kept + (1.0 - draw.kept) * draw.lam if draw.mixes else torch.ones_like(draw.kept)
        return labels, labels[draw.partner], weight

    def owns(self, target: Tensor) -> bool:
        """Whether targets are those that the mixer returned for this batch, the same tensor."""
        return target is self.target or getattr(target, "_mixed_batch", None) == self.number

    def require(self, target: Tensor) -> None:
        """Raise UserError if the targets of a training loss belong to another batch, or are not a copy of this one's.

        Values are looked at on the CPU only: on an accelerator that would wait for the device.
        """
        if self.owns(target):
            return
        mixes, returned = self.draw.mixes, self.target
        if mixes and target.ndim == 1:
            raise UserError(
                "the batch was mixed, so its loss needs the targets that the mixer returned, not the labels: "
                "x, target = mix(x, target), then mix.loss(output, target)"
            )
        if was_returned(target):
            raise UserError(
                "these targets are of another batch than the last that was mixed: take the loss of a batch before the "
                "next call of mix(x, target)"
            )
        same = target.shape == returned.shape if mixes else len(target) == len(returned)
        if mixes and same and target.device.type == returned.device.type == "cpu":
            same = torch.allclose(target.float(), returned, atol=1e-2)
        if not same:
            raise UserError(
                f"target {tuple(target.shape)} is not the one that mix(x, target) returned: samples that are mixed "
                f"again, by timm.data.Mixup for one, have other partners inside the model. Call timm's Mixup before "
                f"the mixer"
            )

    def loss(self, output: Tensor, target: Tensor, criterion: Criterion) -> Tensor:
        """Return the loss of the batch: the objective if it was mixed, otherwise the loss of its targets as they came.

        Raises:
            ValueError: output and targets differ in their classes, or a mask per sample needs a loss per sample.
        """
        if self.draw.mixes:
            return mean_loss(self._objective(output, target, criterion), criterion)
        return self.unmixed_loss(output, self.own_targets(criterion) if self.owns(target) else target, criterion)

    def unmixed_loss(self, output: Tensor, target: Tensor, criterion: Criterion) -> Tensor:
        """Return the criterion's loss of targets like this batch's."""
        return unmixed_loss(output, target, criterion, from_indices=self.from_indices)

    def own_targets(self, criterion: Criterion) -> Tensor:
        """Return its own targets as the criterion takes them: class indices as they came, if it can, or (B, K)."""
        as_they_came = self.from_indices and takes_indices(criterion) and not self.smoothed
        return self.given.long() if as_they_came else self.own  # timm's and torch's losses take int64 alone

    def _objective(self, output: Tensor, target: Tensor, criterion: Criterion) -> Tensor:
        kept = self.draw.kept
        assert self.objective is not None
        objective: Objective = "paper" if self.objective == "authors" else self.objective
        own_in_l2 = self.objective == "authors" and self.draw.site == INPUT
        soft = for_soft_targets(criterion, from_indices=self.from_indices)
        if is_affine(criterion):
            require_same_classes(output, target)
            loss = soft(output, target)
            if own_in_l2:
                return loss + soft(output, self.own.to(output.device))
            return 2.0 * loss if objective == "paper" else loss
        if rounds_targets(criterion) and (objective != "l1" or not self.draw.swaps):
            warnings.warn(
                f"{type(criterion).__name__} rounds mixed labels to 0 and 1; hard PatchUp with objective='l1' gives it "
                f"none to round",
                stacklevel=4,
            )
        if kept.ndim == 1 and objective != "l2" and soft(output.detach(), target).shape != kept.shape:
            raise ValueError(
                "a mask per sample with this criterion needs a loss per sample: give a criterion with "
                "reduction='none', or objective='l2', or mask='batch'"
            )
        return patchup_loss(
            output,
            target=self.own,
            changed_target=self._mixed[0],
            mixed_target=self.own if own_in_l2 else target,
            kept=kept,
            criterion=soft,
            objective=objective,
        )


def was_returned(target: Tensor) -> bool:
    """Whether targets are what a mixer returned for some batch, the same tensor."""
    return hasattr(target, "_mixed_batch")


def unmixed_loss(output: Tensor, target: Tensor, criterion: Criterion, *, from_indices: bool = True) -> Tensor:
    """Return the criterion's own loss.

    Args:
        output: logits, (B, K).
        target: class indices, (B,), or distributions, (B, K).
        criterion: l(output, target).
        from_indices: whether distributions were made of class indices.
    """
    if target.ndim == 1:
        return mean_loss(criterion(output, target), criterion)
    if is_affine(criterion):
        require_same_classes(output, target)
    return mean_loss(for_soft_targets(criterion, from_indices=from_indices)(output, target), criterion)


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


def usable_criterion(
    criterion: Criterion | None, output: object, *, label_smoothing: float, num_splits: int
) -> Criterion:
    """Return the criterion of a loss, cross-entropy if none is given.

    Raises:
        TypeError: the output is not a tensor.
        ValueError: mixer and criterion both smooth labels, or differ in their splits.
    """
    require_logits(output)
    criterion = cross_entropy if criterion is None else criterion
    refuse_double_smoothing(label_smoothing, criterion)
    refuse_other_splits(num_splits, criterion)
    return criterion
