"""The batches of a run: which samples, in which order, for which process.

``load_data`` opens the recipe's data and makes three parts: ``train``, ``val`` and ``test``. Training batches follow
from (seed, epoch) alone: the update number says where an epoch goes on, and every process takes its share of the same
batch. Evaluation gives every sample to exactly one process, once.
"""

import hashlib
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ..core.seeding import derive_seed
from ..errors import DataError
from .source import Source, open_source
from .splits import hold_out, take_per_class, take_stratified
from .transforms import Augmentation, PaddedCrops, evaluation_transform, needs_each_image, normalize

if TYPE_CHECKING:
    from ..recipe import Recipe

# (epoch, sample); evaluation has no epoch.
SampleKey = tuple[int, int]
EVALUATION = -1


class MemoryImages(Dataset):
    """Images decoded once and kept as bytes (N, C, H, W), given out in batches."""

    def __init__(self, source: Source, rows: np.ndarray, recipe: "Recipe") -> None:
        self.recipe = recipe
        self.labels = torch.from_numpy(source.labels[rows].astype(np.int64))
        self.images = _decode(source, rows, recipe)
        self._crops = PaddedCrops(
            len(rows), padding=recipe.crop_padding or 0, hflip=recipe.hflip, seed=derive_seed(recipe.seed, 1)
        )
        self._augment = Augmentation(recipe, crop=False) if needs_each_image(recipe) else None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: Sequence[SampleKey]) -> tuple[Tensor, Tensor]:
        epoch = keys[0][0]
        index = torch.tensor([sample for _, sample in keys])
        images, labels = self.images[index], self.labels[index]
        if epoch == EVALUATION:
            return normalize(images, self.recipe), labels
        images = self._crops(images, index, epoch)
        if self._augment is None:
            return normalize(images, self.recipe), labels
        each = [self._augment(image, sample, epoch) for image, (_, sample) in zip(images, keys)]
        return torch.stack(each), labels


class StoredImages(Dataset):
    """Images decoded each time they are asked for, through timm's transforms."""

    def __init__(self, source: Source, rows: np.ndarray, recipe: "Recipe") -> None:
        self.source, self.rows = source, rows
        self.mode = _mode(recipe)
        self.labels = torch.from_numpy(source.labels[rows].astype(np.int64))
        self._augment = Augmentation(recipe, crop=True)
        self._evaluate = evaluation_transform(recipe)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: Sequence[SampleKey]) -> tuple[Tensor, Tensor]:
        images = []
        for epoch, sample in keys:
            image = self.source.image(self.rows[sample]).convert(self.mode)
            images.append(self._evaluate(image) if epoch == EVALUATION else self._augment(image, sample, epoch))
        return torch.stack(images), self.labels[[sample for _, sample in keys]]


class TrainingBatches(Sampler[list[SampleKey]]):
    """The micro-batches of one process: its part of each batch, in ``grad_accum_steps`` pieces.

    Batch u of an epoch is the same set of samples for any number of processes; the last samples of an epoch that fill
    no batch are left out, others each time.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        batch_size: int,
        pieces: int,
        rank: int,
        world_size: int,
        seed: int,
    ) -> None:
        self.num_samples, self.batch_size, self.pieces = num_samples, batch_size, pieces
        self.rank, self.world_size, self.seed = rank, world_size, seed
        self.updates = num_samples // batch_size
        self._epoch, self._start = 0, 0

    def begin(self, epoch: int, update: int = 0) -> None:
        """Set the epoch, and the update it goes on with, of the next pass over the loader."""
        self._epoch, self._start = epoch, update

    def __len__(self) -> int:
        return (self.updates - self._start) * self.pieces

    def __iter__(self) -> Iterator[list[SampleKey]]:
        epoch, start = self._epoch, self._start
        generator = torch.Generator().manual_seed(derive_seed(self.seed, 0, epoch))
        order = torch.randperm(self.num_samples, generator=generator)
        share = self.batch_size // (self.world_size * self.pieces)
        for update in range(start, self.updates):
            for piece in range(self.pieces):
                first = update * self.batch_size + (piece * self.world_size + self.rank) * share
                yield [(epoch, sample) for sample in order[first : first + share].tolist()]


class EvaluationBatches(Sampler[list[SampleKey]]):
    """Every sample once, over all processes together.

    Args:
        whole: share out batches and not samples, so that a batch is the same for any number of processes. The last
            process may have one batch less to do.
    """

    def __init__(self, num_samples: int, *, batch_size: int, rank: int, world_size: int, whole: bool = False) -> None:
        samples = list(range(num_samples) if whole else range(rank, num_samples, world_size))
        batches = [samples[first : first + batch_size] for first in range(0, len(samples), batch_size)]
        self.batches = batches[rank::world_size] if whole else batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for batch in self.batches:
            yield [(EVALUATION, sample) for sample in batch]


@dataclass(frozen=True)
class Data:
    """The parts of a run's data. ``val`` is ``test`` where nothing is held out."""

    train: MemoryImages | StoredImages
    val: MemoryImages | StoredImages
    test: MemoryImages | StoredImages
    held_out: bool
    class_names: Sequence[str] | None
    fingerprint: str

    def describe(self) -> str:
        kind = "held out of train" if self.held_out else "the test set, nothing is chosen on it"
        return f"{len(self.train)} train, {len(self.val)} val ({kind}), {len(self.test)} test"


def load_data(recipe: "Recipe", data_dir: str | Path | None = None) -> Data:
    """Open the recipe's data and divide it.

    Raises:
        DataError: the data is missing or does not fit the recipe.
    """
    train_source = open_source(recipe, recipe.train_split, data_dir)
    test_source = open_source(recipe, recipe.val_split, data_dir)
    train_rows, val_rows = hold_out(train_source.labels, recipe.val_fraction, seed=recipe.split_seed)
    if recipe.train_per_class is not None:
        try:
            picked = take_per_class(train_source.labels[train_rows], recipe.train_per_class, seed=recipe.split_seed)
        except ValueError as error:
            raise DataError(f"train_per_class: {error}") from error
        train_rows = train_rows[picked]
    test_rows = np.arange(len(test_source.labels))
    train_rows = _limited(train_source, train_rows, recipe)
    val_rows = _limited(train_source, val_rows, recipe)
    test_rows = _limited(test_source, test_rows, recipe)
    if recipe.val_fraction and len(val_rows) == 0:
        raise DataError(f"val_fraction {recipe.val_fraction} of {len(train_source.labels)} samples is none")
    if len(train_rows) < recipe.batch_size:
        raise DataError(f"batch_size {recipe.batch_size} is more than the {len(train_rows)} samples to train on")
    kind = StoredImages if recipe.crop_padding is None else MemoryImages
    test = kind(test_source, test_rows, recipe)
    held_out = recipe.val_fraction > 0
    return Data(
        train=kind(train_source, train_rows, recipe),
        val=kind(train_source, val_rows, recipe) if held_out else test,
        test=test,
        held_out=held_out,
        class_names=train_source.class_names,
        fingerprint=fingerprint(train_source.labels, train_rows, val_rows, test_source.labels, test_rows),
    )


def training_loader(
    images: MemoryImages | StoredImages, recipe: "Recipe", *, rank: int, world_size: int, pin_memory: bool = False
) -> tuple[DataLoader, TrainingBatches]:
    """Return the loader of a process and the sampler that is told the epoch."""
    batches = TrainingBatches(
        len(images),
        batch_size=recipe.batch_size,
        pieces=recipe.grad_accum_steps,
        rank=rank,
        world_size=world_size,
        seed=recipe.seed,
    )
    return _loader(images, batches, recipe, pin_memory), batches


def evaluation_loader(
    images: Sized,
    recipe: "Recipe",
    *,
    rank: int,
    world_size: int,
    whole: bool = False,
    pin_memory: bool = False,
) -> DataLoader:
    """Return the loader of a process's share of an evaluation; ``whole`` shares out batches and not samples."""
    size = recipe.validation_batch_size
    batches = EvaluationBatches(len(images), batch_size=size, rank=rank, world_size=world_size, whole=whole)
    return _loader(images, batches, recipe, pin_memory)


def _loader(images: Any, batches: Sampler, recipe: "Recipe", pin_memory: bool) -> DataLoader:
    return DataLoader(
        images,
        batch_sampler=batches,
        collate_fn=_as_it_is,
        num_workers=recipe.workers,
        pin_memory=pin_memory,
        persistent_workers=recipe.workers > 0,
        generator=torch.Generator(),  # so that making an iterator leaves the global generator alone
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def _limited(source: Source, rows: np.ndarray, recipe: "Recipe") -> np.ndarray:
    if recipe.limit is None:
        return rows
    return rows[take_stratified(source.labels[rows], recipe.limit, seed=recipe.split_seed)]


def _mode(recipe: "Recipe") -> str:
    return "RGB" if recipe.input_size[0] == 3 else "L"


def _decode(source: Source, rows: np.ndarray, recipe: "Recipe") -> Tensor:
    from timm.data.transforms import str_to_pil_interp

    channels, height, width = recipe.input_size
    mode, how = _mode(recipe), str_to_pil_interp(recipe.interpolation)
    images = np.empty((len(rows), height, width, channels), dtype=np.uint8)
    for position, row in enumerate(rows):
        image = source.image(row).convert(mode)
        if image.size != (width, height):
            image = image.resize((width, height), how)
        images[position] = np.asarray(image).reshape(height, width, channels)
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def fingerprint(*arrays: np.ndarray) -> str:
    """Return a short digest of labels and divisions: other data under the same name is noticed on resume."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
        digest.update(b"/")
    return digest.hexdigest()[:16]
