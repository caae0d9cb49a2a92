"""Targets of mixed samples: as distributions, smoothed, re-weighted by what was altered (eq. 7 and 8), and the learning
objective (eq. 6) that compares a model's output with them.
"""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Objective = Literal["paper", "l1", "l2"]
MethodObjective = Literal["paper", "l1", "l2", "authors"]  # what a method may ask for: see ``Method.objective``


def soft_target(target: Tensor, num_classes: int, *, label_smoothing: float = 0.0) -> Tensor:
    """Return targets as distributions, float32, smoothed as timm does: ``(1 - s) * y + s / K``.

    Args:
        target: int64 (B,) class indices, or float (B, K).
        num_classes: K.
        label_smoothing: s, in [0, 1).
    """
    soft = F.one_hot(target, num_classes).float() if target.ndim == 1 else target.float()
    return smooth_target(soft, label_smoothing)


def smooth_target(target: Tensor, label_smoothing: float) -> Tensor:
    """Return ``(1 - s) * target + s / K`` for soft targets (B, K)."""
    if label_smoothing == 0.0:
        return target
    return target * (1.0 - label_smoothing) + label_smoothing / target.shape[1]


def mix_targets(target: Tensor, partner: Tensor, *, kept: Tensor, lam: float | Tensor = 0.0) -> tuple[Tensor, Tensor]:
    """Return Y, the target of the altered features, and W, the re-weighted target (eq. 7 and 8).

    Args:
        target: float, (B, K); Y and W have its dtype.
        partner: int64, (B,).
        kept: p_u, 0-d or (B,).
        lam: weight of the own target inside the altered region, a number or (B,); 0 for a swap, where Y is the
            partner's target.
    """
    lam = lam.reshape(-1, 1).to(target.dtype) if isinstance(lam, Tensor) else lam
    changed_target = lam * target + (1.0 - lam) * target[partner]
    kept = kept.reshape(-1, 1).to(target.dtype)
    return changed_target, kept * target + (1.0 - kept) * changed_target


def patchup_loss(
    output: Tensor,
    *,
    target: Tensor,
    changed_target: Tensor,
    mixed_target: Tensor,
    kept: Tensor,
    criterion: Callable[[Tensor, Tensor], Tensor],
    objective: Objective = "paper",
) -> Tensor:
    """Return the learning objective (eq. 6) in its general form, for any criterion on soft targets.

    L1 = p_u * l(out, y) + (1 - p_u) * l(out, Y), L2 = l(out, W), and the paper's L = L1 + L2. If l is affine in its
    target, L1 equals L2, and a caller who knows that can take ``2 * l(out, W)`` instead.

    Args:
        output: logits, (B, K).
        target: y, the sample's own target, (B, K).
        changed_target: Y, (B, K).
        mixed_target: W, (B, K).
        kept: p_u, 0-d. With one p_u per sample, (B,), the criterion must return one loss per sample.
        criterion: l.
        objective: ``"paper"`` for L1 + L2, ``"l1"`` or ``"l2"`` for one of them.
    """
    if objective == "l2":
        return criterion(output, mixed_target)
    first = kept * criterion(output, target) + (1.0 - kept) * criterion(output, changed_target)
    return first if objective == "l1" else first + criterion(output, mixed_target)
