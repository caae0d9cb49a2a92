"""The confusion matrix of a test: which classes are taken for which, as numbers and as a picture.

Row t, column p is the number of images of class t that were predicted as class p, exact over processes.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from ..system.files import replacing

# A matrix of more classes is neither readable nor small; its numbers can be computed from predictions.
MAX_CLASSES = 100
_MAX_WRITTEN = 25  # classes up to which cells have numbers
_NAME_LENGTH = 18


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


def plot_confusion(matrix: Sequence[Sequence[int]], names: Sequence[str] | None, path: Path, *, title: str) -> None:
    """Plot a confusion matrix to a PNG file: shares of each true class, and the counts if they fit."""
    from matplotlib.figure import Figure

    counts = torch.tensor(matrix)
    shares = counts / counts.sum(dim=1, keepdim=True).clamp_min(1)
    size = len(matrix)
    labels = [str(name)[:_NAME_LENGTH] for name in (names or range(size))]
    side = min(16.0, 3.0 + 0.42 * size)
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(size), labels, rotation=90, parse_math=False)
    axes.set_yticks(range(size), labels, parse_math=False)
    axes.tick_params(labelsize=9 if size <= _MAX_WRITTEN else 5)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true class")
    axes.set_title(title, parse_math=False)
    for row, values in enumerate(matrix if size <= _MAX_WRITTEN else ()):
        for column, count in enumerate(values):
            if count:
                color = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=color, fontsize=8)
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format="png")
