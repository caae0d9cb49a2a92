"""The confusion matrix of a test: which classes are taken for which.

Row t, column p is the number of images of class t that were predicted as class p, exact over processes.
"""

import torch
from accelerate import Accelerator
from torch import Tensor

# A matrix of more classes is neither readable nor small; its numbers can be computed from predictions.
MAX_CLASSES = 100


class Confusion:
    """Counts predictions by class; ``observe`` takes the batches of this process, ``total`` sums over all."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.num_classes = num_classes
        self.counts = torch.zeros(num_classes * num_classes, dtype=torch.int64, device=device)

    def observe(self, output: Tensor, labels: Tensor) -> None:
        """Count a batch: logits (B, K) and labels (B,)."""
        cells = labels * self.num_classes + output.argmax(dim=1)
        self.counts += torch.bincount(cells, minlength=len(self.counts))

    def total(self, accelerator: Accelerator) -> list[list[int]]:
        """Return the matrix over all processes; a collective call."""
        return accelerator.reduce(self.counts.clone(), "sum").view(self.num_classes, -1).tolist()
