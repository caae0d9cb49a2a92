"""Which samples are in which batch, per process: the batch samplers of training and evaluation.

Training batches depend on (seed, epoch) only, so the update number is enough to resume inside an epoch. Evaluation
gives every sample to exactly one process.
"""

from collections.abc import Iterator
from itertools import cycle, islice

import torch
from torch.utils.data import Sampler

from ..core.sampling import derive_seed
from .images import EVALUATION, SampleKey


class TrainingBatches(Sampler[list[SampleKey]]):
    """The micro-batches of one process: its share of each batch, in ``micro_batches`` accumulation steps.

    Batch u of an epoch is the same set of samples for any number of processes. The samples at the end of an epoch that
    do not fill a batch are dropped; which ones differs per epoch.

    With ``repeats``, each image is there that often in a row, and an epoch has as many updates as without: it sees a
    part of the images, as with timm's RepeatAugSampler.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        batch_size: int,
        micro_batches: int,
        rank: int,
        world_size: int,
        seed: int,
        repeats: int = 1,
    ) -> None:
        self.num_samples, self.batch_size, self.micro_batches = num_samples, batch_size, micro_batches
        self.rank, self.world_size, self.seed = rank, world_size, seed
        self.updates = num_samples // batch_size
        self.repeats = repeats
        self._epoch, self._start = 0, 0

    def begin(self, epoch: int, update: int = 0) -> None:
        """Set the epoch of the next pass over the loader, and the update it starts with."""
        self._epoch, self._start = epoch, update

    def __len__(self) -> int:
        return (self.updates - self._start) * self.micro_batches

    def __iter__(self) -> Iterator[list[SampleKey]]:
        epoch, start = self._epoch, self._start
        generator = torch.Generator().manual_seed(derive_seed(self.seed, 0, epoch))
        order = torch.randperm(self.num_samples, generator=generator).repeat_interleave(self.repeats)
        share = self.batch_size // (self.world_size * self.micro_batches)
        # Repeats of an image have epochs of their own, so that each is augmented anew.
        epochs = range(epoch * self.repeats, (epoch + 1) * self.repeats)
        for update in range(start, self.updates):
            for micro_batch in range(self.micro_batches):
                first = update * self.batch_size + (micro_batch * self.world_size + self.rank) * share
                samples = order[first : first + share].tolist()
                yield list(zip(islice(cycle(epochs), first % self.repeats, None), samples))


class EvaluationBatches(Sampler[list[SampleKey]]):
    """Every sample once, over all processes.

    Args:
        whole: distribute whole batches instead of samples, so that a batch is the same for any number of processes.
            Some processes may then have one batch less than the first.
    """

    def __init__(self, num_samples: int, *, batch_size: int, rank: int, world_size: int, whole: bool = False) -> None:
        samples = list(range(num_samples) if whole else range(rank, num_samples, world_size))
        batches = [samples[first : first + batch_size] for first in range(0, len(samples), batch_size)]
        self.batches = batches[rank::world_size] if whole else batches
        self._epoch = EVALUATION

    def begin(self, epoch: int) -> None:
        """Set the epoch whose augmentation the next pass over the loader has; without this call there is none."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for batch in self.batches:
            yield [(self._epoch, sample) for sample in batch]
