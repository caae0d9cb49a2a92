"""Evaluation of a classifier, exact over processes: every sample counts once, sums are float64.

Validation and the test of a run use it; the suites of the evaluation measure for themselves.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn


@dataclass(frozen=True)
class Metrics:
    """Percentages and the mean negative log-likelihood over ``count`` samples."""

    top1: float
    top5: float
    loss: float
    count: int

    @property
    def error(self) -> float:
        return 100.0 - self.top1


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    accelerator: Accelerator,
    *,
    channels_last: bool = False,
    observe: Callable[[Tensor, Tensor], None] | None = None,
) -> Metrics:
    """Evaluate an unwrapped model on the batches of this process and sum over all processes.

    The model is left in the mode it was in. With fewer than five classes, top-5 is among all of them. ``observe`` is
    called with the logits and labels of each batch.
    """
    was_training = model.training
    model.eval()
    sums = torch.zeros(4, dtype=sum_dtype(accelerator.device), device=accelerator.device)
    with torch.inference_mode():
        for images, labels in batches:
            images = images.to(accelerator.device, non_blocking=True)
            labels = labels.to(accelerator.device, non_blocking=True)
            if channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            with accelerator.autocast():
                output = model(images)
            output = output.float()
            if observe is not None:
                observe(output, labels)
            ranked = output.topk(min(5, output.shape[1]), dim=1).indices == labels[:, None]
            loss = F.cross_entropy(output, labels, reduction="none")
            parts = (ranked[:, 0].sum(), ranked.sum(), loss.to(sums.dtype).sum(), torch.tensor(len(labels)))
            sums += torch.stack([part.to(sums) for part in parts])
    model.train(was_training)
    right, among_five, loss_sum, count = accelerator.reduce(sums.clone(), "sum").tolist()
    return Metrics(100.0 * right / count, 100.0 * among_five / count, loss_sum / count, int(count))


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the widest float type for sums on a device."""
    return torch.float32 if device.type == "mps" else torch.float64
