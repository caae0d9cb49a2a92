"""What a suite gets to work with: one classifier, the test images, the processes that share them, and the options.

A suite goes over ``bench.batches(...)`` and adds up with ``bench.total``: every sample counts once, whatever the number
of processes.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from tqdm import tqdm

from ..errors import UserError
from ..runs.metrics import sum_dtype
from .images import TestImages
from .subject import Subject

EpsSpace = Literal["pixels", "normalised"]


@dataclass(frozen=True)
class Options:
    """What a call may choose about the suites."""

    seed: int = 0
    eps_space: EpsSpace = "pixels"
    attack_steps: int = 7
    corrupted: str | None = None


@dataclass(frozen=True)
class Measured:
    """What a suite found: single numbers, and lists of numbers for figures."""

    values: dict[str, float | None]
    curves: dict[str, list[float]] = field(default_factory=dict)
    count: int = 0


@dataclass(frozen=True)
class Bench:
    """One classifier on the test images."""

    subject: Subject
    images: TestImages
    accelerator: Accelerator
    options: Options

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    def batches(self, title: str) -> Iterator[tuple[Tensor, Tensor, Sequence[int]]]:
        """Give this process's share: images in [0, 1], labels, and the rows of the samples in their split."""
        loader = self.images.loader(rank=self.accelerator.process_index, world_size=self.accelerator.num_processes)
        show = self.accelerator.is_main_process and sys.stderr.isatty()
        for images, labels, rows in tqdm(loader, desc=title, unit="batch", leave=False, disable=not show):
            yield images.to(self.device), labels.to(self.device), rows

    def logits(self, images: Tensor) -> Tensor:
        """Return what the classifier says of images in [0, 1].

        Raises:
            UserError: it says what is no number; the class of that would still be counted as right or wrong.
        """
        output: Tensor = self.subject.classifier(images)
        if not bool(output.isfinite().all()):
            raise UserError(f"{self.subject.name} gives logits that are not finite: its weights are damaged")
        return output

    def total(self, sums: Tensor) -> Tensor:
        """Add up over all processes; float64, on the CPU."""
        return self.accelerator.reduce(sums.to(self.device, sum_dtype(self.device)).clone(), "sum").double().cpu()

    def all_of(self, values: list[Any]) -> list[Any]:
        """Return the values of all processes, one after the other."""
        return gather_object(values) if self.accelerator.num_processes > 1 else values

    def count_errors(self, title: str, change: Any) -> tuple[float, int]:
        """Return the error in percent, and on how many samples, on images that ``change(images, rows)`` gives."""
        sums = torch.zeros(2, dtype=torch.float64)
        with torch.inference_mode():
            for images, labels, rows in self.batches(title):
                wrong = self.logits(change(images, rows)).argmax(dim=1) != labels
                sums += torch.tensor([int(wrong.sum()), len(labels)])
        wrong_count, count = self.total(sums).tolist()
        return 100.0 * wrong_count / count, int(count)
