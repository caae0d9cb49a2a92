"""Error, negative log-likelihood and calibration on unaltered test images (the paper's tables 1 to 3).

Calibration is not in the paper: ECE with 15 bins, and the Brier score, which needs no bins.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...report.numbers import Metric
from ..context import EvalContext, Measurement
from ..suite import Suite

BINS = 15


def settings(context: EvalContext) -> dict[str, Any]:
    return {"bins": BINS, "brier": "sum over classes"}


def measure(context: EvalContext) -> Measurement:
    """Return top-1 and top-5 error, NLL, the expected calibration error and the Brier score.

    With fewer than five classes, top-5 is over all of them, as in training.
    """
    sums, bins = torch.zeros(5, dtype=torch.float64), torch.zeros(3, BINS, dtype=torch.float64)
    with torch.inference_mode():
        for images, labels, _ in context.batches("clean"):
            output = context.logits(images).float()
            ranked = output.topk(min(5, output.shape[1]), dim=1).indices == labels[:, None]
            loss = F.cross_entropy(output, labels, reduction="none").double().sum()
            probabilities = output.double().softmax(dim=1)
            brier = brier_sum(probabilities, labels)
            sums += torch.tensor([*map(float, (ranked[:, 0].sum(), ranked.sum(), loss, brier)), len(labels)]).double()
            bins += calibration_bins(probabilities.cpu(), labels.cpu())
    correct, correct_in_five, loss_sum, brier_total, count = context.total(sums).tolist()
    return Measurement(
        {
            "error": 100.0 - 100.0 * correct / count,
            "top5_error": 100.0 - 100.0 * correct_in_five / count,
            "nll": loss_sum / count,
            "ece": 100.0 * calibration_error(context.total(bins)),
            "brier": brier_total / count,
        },
        count=int(count),
    )


def calibration_bins(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the sums of a batch that the calibration error needs; add them up over batches.

    Args:
        probabilities: float64, (B, K).
        labels: int64, (B,).

    Returns:
        float64, (3, BINS): number of samples, of correct ones, and summed confidence per bin. Bins have equal width and
        include their upper end, so a confidence of 1 is in the last.
    """
    confidence, predicted = probabilities.max(dim=1)
    index = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    values = torch.stack([torch.ones_like(confidence), (predicted == labels).double(), confidence])
    return torch.zeros(3, BINS, dtype=torch.float64).index_add_(1, index, values)


def brier_sum(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the summed Brier scores of a batch: the squared distances of probabilities from one-hot labels, 0 to 2."""
    return (probabilities - F.one_hot(labels, probabilities.shape[1])).square().sum()


def calibration_error(bins: Tensor) -> float:
    """Return the expected calibration error in [0, 1]: |accuracy - confidence| per bin, weighted by its samples."""
    count, correct, confidence = bins
    return float((correct - confidence).abs().sum() / count.sum())


_LABELS = {"error": "top-1 error, %", "top5_error": "top-5 error, %", "nll": "NLL", "ece": "ECE, %", "brier": "Brier"}
SUITE = Suite(
    name="clean",
    title="Clean test images",
    measure=measure,
    settings=settings,
    values=tuple(_LABELS),
    labels=_LABELS,
    metrics=(Metric("ece", "%"), Metric("brier", "score", digits=3)),
    digits=3,
    tall=False,
)
