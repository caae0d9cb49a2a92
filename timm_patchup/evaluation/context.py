"""What a suite works with: one classifier, its test images, the processes that share them, and the options.

A suite iterates over ``context.batches(...)`` and sums with ``context.total``: every sample counts once, for any number
of processes.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from tqdm import tqdm

from ..errors import UserError
from ..runs.metrics import sum_dtype
from ..system.output import printable
from .images import TestImages
from .models import EvalModel


@dataclass(frozen=True)
class Measurement:
    """What a suite measured: single numbers, and lists of numbers for figures."""

    values: dict[str, float | None]
    curves: dict[str, list[float]] = field(default_factory=dict)
    count: int = 0


@dataclass(frozen=True)
class EvalContext:
    """One classifier on the test images.

    Attributes:
        model: the classifier.
        images: its test images.
        accelerator: the processes.
        seed: seed of all random choices.
        options: values of the suites' options by name, see ``Option``.
    """

    model: EvalModel
    images: TestImages
    accelerator: Accelerator
    seed: int
    options: Mapping[str, Any]

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    def batches(self, title: str) -> Iterator[tuple[Tensor, Tensor, Sequence[int]]]:
        """Yield this process's share: images in [0, 1], labels, and the samples' rows in the split."""
        rank, world_size = self.accelerator.process_index, self.accelerator.num_processes
        loader, rows = self.images.loader(rank=rank, world_size=world_size, device=self.device)
        show = self.accelerator.is_main_process and sys.stderr.isatty()
        shown = tqdm(loader, desc=printable(title), unit="batch", leave=False, disable=not show)
        for (images, labels), batch_rows in zip(shown, rows):
            yield images, labels, batch_rows

    def logits(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of images in [0, 1].

        Raises:
            UserError: a logit is not finite; its argmax would still count as a right or wrong answer.
        """
        output: Tensor = self.model.classifier(images)
        if not bool(output.isfinite().all()):
            raise UserError(f"{self.model.name} returns logits that are not finite: its weights are damaged")
        return output

    def total(self, sums: Tensor) -> Tensor:
        """Return the sum over all processes, float64 on the CPU."""
        return self.accelerator.reduce(sums.to(self.device, sum_dtype(self.device)).clone(), "sum").double().cpu()

    def gather(self, values: list[Any]) -> list[Any]:
        """Return the values of all processes, in the order of the processes."""
        return gather_object(values) if self.accelerator.num_processes > 1 else values

    def count_errors(self, title: str, change: Callable[[Tensor, Sequence[int]], Tensor]) -> tuple[float, int]:
        """Return the error in percent on images altered by ``change(images, rows)``, and the number of samples."""
        sums = torch.zeros(2, dtype=torch.float64)
        with torch.inference_mode():
            for images, labels, rows in self.batches(title):
                wrong = self.logits(change(images, rows)).argmax(dim=1) != labels
                sums += torch.tensor([int(wrong.sum()), len(labels)])
        wrong_count, count = self.total(sums).tolist()
        return 100.0 * wrong_count / count, int(count)
