"""Checks of a batch, images (B, C, H, W) and targets, before it is mixed and when its loss is taken.

``MixedBatch`` is what a mixer remembers of a batch in between.
"""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from ..errors import UserError
from .draw import Draw
from .functional import MethodObjective, soft_target


@dataclass(frozen=True)
class MixedBatch:
    """What a call of a mixer decided.

    Attributes:
        draw: what was drawn.
        given: the targets as they came.
        own: the targets as distributions, (B, K): y.
        changed: Y, the targets of the altered features; None if samples are not mixed.
        target: what the call returned: W, or y if samples are not mixed.
        objective: that of the method which acted; None if samples are not mixed.
        clean: the images as they came, if their own loss is part of the batch's; otherwise None.
        clean_lam: its weight.
    """

    draw: Draw
    given: Tensor
    own: Tensor
    changed: Tensor | None
    target: Tensor
    objective: MethodObjective | None
    clean: Tensor | None = None
    clean_lam: float = 0.0

    @property
    def from_indices(self) -> bool:
        """Whether the targets came as class indices."""
        return self.given.ndim == 1


def check_batch(x: Tensor, target: Tensor) -> None:
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


def check_splits(target: Tensor, num_splits: int, *, look: bool) -> None:
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


def check_logits(output: object) -> None:
    """Raise TypeError if the output of a model is not the tensor of its logits."""
    if not isinstance(output, Tensor):
        field = next((name for name in ("logits", "out") if isinstance(getattr(output, name, None), Tensor)), None)
        hint = f": give output.{field}" if field else ""
        raise TypeError(f"output must be the tensor of logits (B, K), got {type(output).__name__}{hint}")


def check_classes(output: Tensor, target: Tensor) -> None:
    """Raise UserError if logits and targets, both (B, K), have different shapes."""
    if output.shape != target.shape:
        given, needed = tuple(output.shape), tuple(target.shape)
        hint = (
            ""
            if given[1:] == needed[1:]
            else f": if the model has a new head, give num_classes={given[-1]} to the mixer"
        )
        raise UserError(f"output is {given}, but the targets are {needed}; both must be (B, K){hint}")


def own_target(target: Tensor, num_classes: int | None, *, label_smoothing: float, check_values: bool) -> Tensor:
    """Return the targets of a batch as distributions, float32 (B, K).

    Args:
        target: int (B,) class indices, or float (B, K).
        num_classes: K, None if nobody has stated it.
        label_smoothing: in [0, 1).
        check_values: whether to look at the values, which waits for an accelerator.

    Raises:
        ValueError: the targets do not fit the number of classes, or are not finite or negative.
    """
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
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise ValueError(
                f"target has the label {wrong}, allowed are 0 to num_classes - 1 = {num_classes - 1}: "
                f"check the labels, or give num_classes= to the mixer"
            )
    return soft_target(target.long(), num_classes, label_smoothing=label_smoothing)


def mark_returned(target: Tensor, draw: Draw) -> None:
    """Note on the targets of a batch which draw they belong to."""
    target._mix_draw = draw  # type: ignore[attr-defined]


def is_of_another_batch(target: Tensor, batch: MixedBatch, *, trains: bool) -> bool:
    """Whether targets have nothing to do with the last batch or an older one: they did not pass through the mixer.

    Args:
        target: of a loss.
        batch: the last batch.
        trains: whether the loss has a gradient. If not, labels of the last batch are for its images as they came.
    """
    if target is batch.target or hasattr(target, "_mix_draw"):
        return False
    if target is batch.given:
        return not trains
    returned = batch.target.to(target.device)
    return target.shape != returned.shape or not torch.allclose(target.float(), returned, atol=1e-2)


def check_returned(target: Tensor, returned: Tensor, draw: Draw) -> None:
    """Raise UserError if the targets of a loss are not those that the mixer returned for its last batch.

    Copies, on another device for one, are fine. Values are looked at on the CPU only: on an accelerator that would wait
    for the device.
    """
    if target is returned:
        return
    if draw.mixes and target.ndim == 1:
        raise UserError(
            "the batch was mixed, so its loss needs the targets that the mixer returned, not the labels: "
            "x, target = mix(x, target), then mix.loss(output, target)"
        )
    if getattr(target, "_mix_draw", draw) is not draw:
        raise UserError(
            "these targets are of another batch than the last that was mixed: take the loss of a batch before the "
            "next call of mix(x, target)"
        )
    same = target.shape == returned.shape if draw.mixes else len(target) == len(returned)
    if draw.mixes and same and target.device.type == returned.device.type == "cpu":
        same = torch.allclose(target.float(), returned, atol=1e-2)
    if not same:
        raise UserError(
            f"target {tuple(target.shape)} is not the one that mix(x, target) returned: samples that are mixed again, "
            f"by timm.data.Mixup for one, have other partners inside the model. Call timm's Mixup before the mixer"
        )


def _require_plain(name: str, value: Tensor) -> None:
    """Raise TypeError for tensors that have no values, or none at most of their places."""
    if value.is_nested or value.layout is not torch.strided or value.is_meta:
        kind = "nested" if value.is_nested else "meta" if value.is_meta else "sparse"
        raise TypeError(f"{name} is a {kind} tensor, mixing needs a dense one with values")


def _describe(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
