"""Which samples are in which batch, per process: the batch samplers of training and evaluation.

Training batches depend on (seed, epoch) only, so the update number is enough to resume inside an epoch. Evaluation
gives every sample to exactly one process.
"""

from collections.abc import Iterator
from itertools import cycle, islice

import torch
from torch.utils.data import Sampler

from ..core.sampling import derive_seed
from ..errors import UserError
from .images import EVALUATION, SampleKey


class TrainingBatches(Sampler[list[SampleKey]]):
    """The micro-batches of one process: its share of each batch, in ``micro_batches`` accumulation steps.

    Batch u of an epoch is the same set of samples for any number of processes. The samples at the end of an epoch that
    do not fill a batch are dropped, which ones differs per epoch, or make a smaller one (``drop_last`` false). That is
    shared as evenly as it can be.

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
        drop_last: bool = True,
    ) -> None:
        self.num_samples, self.batch_size, self.micro_batches = num_samples, batch_size, micro_batches
        self.rank, self.world_size, self.seed = rank, world_size, seed
        self.updates = num_samples // batch_size if drop_last else -(-num_samples // batch_size)
        self.repeats = repeats
        self._epoch, self._start = 0, 0
        last = self._size(self.updates - 1)
        if last < world_size * micro_batches:
            raise UserError(
                f"drop_last false: {last} of {num_samples} images are left for the last batch of an epoch, too few for "
                f"{world_size} processes x {micro_batches} accumulation steps: change batch_size, or use drop_last true"
            )

    def begin(self, epoch: int, update: int = 0) -> None:
        """Set the epoch of the next pass over the loader, and the update it starts with."""
        self._epoch, self._start = epoch, update

    def divisors(self, update: int) -> list[float]:
        """Return what the mean loss of each micro-batch is divided by before its backward pass.

        Where processes average their gradients and micro-batches add them up, that makes the gradient of the mean loss
        of the whole batch, even if its shares differ in size: the number of micro-batches if they do not.
        """
        shares = (self._share(update, micro_batch) for micro_batch in range(self.micro_batches))
        return [self._size(update) / (self.world_size * (end - first)) for first, end in shares]

    def _size(self, update: int) -> int:
        """Return the number of samples in a batch, over all processes."""
        return min(self.batch_size, self.num_samples - update * self.batch_size)

    def _share(self, update: int, micro_batch: int) -> tuple[int, int]:
        """Return where in the order of an epoch a micro-batch of this process begins and ends."""
        part, parts = micro_batch * self.world_size + self.rank, self.world_size * self.micro_batches
        size, start = self._size(update), update * self.batch_size
        return start + part * size // parts, start + (part + 1) * size // parts

    def __len__(self) -> int:
        return (self.updates - self._start) * self.micro_batches

    def __iter__(self) -> Iterator[list[SampleKey]]:
        epoch, start = self._epoch, self._start
        generator = torch.Generator().manual_seed(derive_seed(self.seed, 0, epoch))
        order = torch.randperm(self.num_samples, generator=generator).repeat_interleave(self.repeats)
        # Each repeat of an image has another epoch number, and with it another augmentation.
        epochs = range(epoch * self.repeats, (epoch + 1) * self.repeats)
        for update in range(start, self.updates):
            for micro_batch in range(self.micro_batches):
                first, end = self._share(update, micro_batch)
                samples = order[first:end].tolist()
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
