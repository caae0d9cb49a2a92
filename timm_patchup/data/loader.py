"""The data of a training run: the splits ``train``, ``val`` and ``test`` of a recipe, and their loaders.

``load_data`` opens and splits the data, ``training_loader`` and ``evaluation_loader`` give a process its batches.
``ImageLoader`` and ``fingerprint`` serve the evaluation suites, too.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from ..errors import DataError
from ..recipe import Recipe
from ..recipe.parts import AugmentSpec, DataSpec, ImageSpec
from .batches import EvaluationBatches, TrainingBatches
from .finish import Finish
from .folders import WHOLE, find_split_folder
from .images import Images, open_images
from .source import open_source, open_test, open_train
from .splits import hold_out, hold_out_per_class, take_at_most, take_per_class, take_stratified
from .workers import PREFETCH, FailedBatch, Notes, WorkerDataset, one_thread

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Data:
    """The splits of a run. ``val`` is ``test`` if nothing is held out."""

    train: Images
    val: Images
    test: Images
    held_out: bool
    class_names: Sequence[str] | None
    fingerprint: str

    def describe(self) -> str:
        kind = "chooses the epoch" if self.held_out else "the test set"
        return f"{len(self.train)} train, {len(self.val)} val ({kind}), {len(self.test)} test"


def load_data(recipe: Recipe, data_dir: str | Path | None = None) -> Data:
    """Open and split the data of a recipe.

    Args:
        recipe: its keys of data, images and augmentation.
        data_dir: a local folder to use instead of the Hub.

    Raises:
        DataError: the data is missing or does not fit the recipe.
    """
    data, images, augment = DataSpec.of(recipe), ImageSpec.of(recipe), AugmentSpec.of(recipe)
    train_source, all_rows = open_train(data, data_dir)
    test_source, test_rows = open_test(data, data_dir)
    _refuse_same_images(recipe, data_dir)
    train_rows, held = _split(train_source.labels[all_rows], recipe)
    val_source, train_rows, val_rows = train_source, all_rows[train_rows], all_rows[held]
    if recipe.select_split is not None:
        val_source = open_source(data, recipe.select_split, data_dir)
        val_rows = np.arange(len(val_source.labels))
    if recipe.limit is not None:
        sources, seed = (train_source, val_source), _split_seed(recipe)
        train_rows, val_rows = (
            rows[take_stratified(source.labels[rows], recipe.limit, seed=seed)]
            for source, rows in zip(sources, (train_rows, val_rows))
        )
        test_rows = test_rows[take_stratified(test_source.labels[test_rows], recipe.limit, seed=data.split_seed)]
    if recipe.val_fraction and len(val_rows) == 0:
        raise DataError(
            f"val_fraction {recipe.val_fraction} of {len(train_source.labels)} samples is less than one sample, or all "
            f"that a class has: raise it, or set it to 0 to hold out nothing"
        )
    if len(train_rows) < recipe.batch_size:
        raise DataError(
            f"batch_size {recipe.batch_size} is larger than the training set of {len(train_rows)} samples: "
            f"lower it (--batch-size)"
        )
    test = open_images(test_source, test_rows, images)
    held_out = recipe.val_fraction > 0 or recipe.val_per_class is not None or recipe.select_split is not None
    parts = [train_source.labels, train_rows, val_rows, test_source.labels, test_rows]
    if recipe.select_split is not None:
        parts.append(val_source.labels)
    return Data(
        train=open_images(train_source, train_rows, images, augment),
        val=open_images(val_source, val_rows, images, augment if recipe.val_augment else None) if held_out else test,
        test=test,
        held_out=held_out,
        class_names=train_source.class_names,
        fingerprint=fingerprint(*parts),
    )


def _refuse_same_images(recipe: Recipe, data_dir: str | Path | None) -> None:
    """Refuse splits that share images: none of the test may be trained on or choose the epoch.

    The folder of a split may have another name, such as test/ for val if there is no val/.
    """
    names = {"train_split": recipe.train_split, "val_split": recipe.val_split, "select_split": recipe.select_split}
    if recipe.test_fraction:
        names["val_split"] = None
    seen: dict[str | Path, str] = {}
    for key, split in names.items():
        if split is None:
            continue
        if seen and recipe.train_split == WHOLE:
            raise DataError(f"train_split {WHOLE} has the images of {key} {split}, too: choose another train_split")
        images = (None if data_dir is None else find_split_folder(Path(data_dir), split)) or split
        if images in seen:
            first = f"{seen[images]} {names[seen[images]]}"
            where = f" ({images})" if isinstance(images, Path) else ""
            raise DataError(f"{first} and {key} {split} are the same images{where}: choose another {key}")
        seen[images] = key


def _split(labels: np.ndarray, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to train on and the rows that are held out."""
    seed = _split_seed(recipe)
    try:
        if recipe.select_split is not None:
            train_rows, val_rows = hold_out(labels, 0.0, seed=seed)
        elif recipe.val_per_class is not None:
            train_rows, val_rows = hold_out_per_class(labels, recipe.val_per_class, seed=seed)
        else:
            train_rows, val_rows = hold_out(labels, recipe.val_fraction, seed=seed)
    except ValueError as error:
        raise DataError(f"val_per_class: {error}") from error
    try:
        if recipe.train_per_class is not None:
            train_rows = train_rows[take_per_class(labels[train_rows], recipe.train_per_class, seed=seed)]
        elif recipe.train_at_most is not None:
            train_rows = train_rows[take_at_most(labels[train_rows], recipe.train_at_most, seed=seed)]
    except ValueError as error:
        raise DataError(f"train_per_class: {error}") from error
    return train_rows, val_rows


def _split_seed(recipe: Recipe) -> int:
    return recipe.seed if recipe.split_by_seed else recipe.split_seed


class ImageLoader:
    """Batches of images on a device, ready for a model, with their labels.

    Args:
        images: a dataset of whole batches (``ByteBatch``).
        batches: which samples are in which batch.
        workers: loader processes; 0 loads in this process.
        device: where the batches go.
    """

    def __init__(self, images: Images, batches: Sampler, *, workers: int, device: torch.device) -> None:
        self.batches = batches
        self._finish = Finish(images.spec, images.augment, device)
        self._device, self._workers = device, workers
        self._notes = Notes(workers, images.describe)
        self._loader = DataLoader(
            WorkerDataset(images),
            batch_sampler=batches,
            collate_fn=identity_collate,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            prefetch_factor=PREFETCH if workers else None,
            worker_init_fn=self._notes.start_worker,
            generator=torch.Generator(),  # without it, making an iterator draws from the global generator
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Start the loader processes and return float images (B, C, H, W) and labels (B,), batch by batch.

        Raises:
            DataError: an image cannot be decoded.
        """
        return self._finished(iter(self._loader))

    def _finished(self, loaded: Iterator[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in loaded:
            if isinstance(batch, FailedBatch):
                raise batch.error
            with one_thread() if self._workers else nullcontext():
                images = self._finish(batch.pixels, batch.params)
            labels = batch.labels.to(self._device, non_blocking=True)
            del batch  # its memory is shared with a loader process, which uses it again
            yield images, labels


def training_loader(
    images: Images, recipe: Recipe, *, rank: int, world_size: int, device: torch.device = _CPU
) -> tuple[ImageLoader, TrainingBatches]:
    """Return the training loader of a process, and its sampler; call ``begin`` of the sampler before each epoch."""
    batches = TrainingBatches(
        len(images),
        batch_size=recipe.batch_size,
        micro_batches=recipe.grad_accum_steps,
        rank=rank,
        world_size=world_size,
        seed=recipe.seed,
        repeats=max(1, recipe.aug_repeats),
        drop_last=recipe.drop_last,
    )
    return ImageLoader(images, batches, workers=recipe.workers, device=device), batches


def evaluation_loader(
    images: Images, recipe: Recipe, *, rank: int, world_size: int, device: torch.device = _CPU
) -> ImageLoader:
    """Return the loader of a process for its share of the samples, each evaluated once."""
    size = recipe.validation_batch_size
    batches = EvaluationBatches(len(images), batch_size=size, rank=rank, world_size=world_size)
    return ImageLoader(images, batches, workers=recipe.workers, device=device)


def identity_collate(batch: Any) -> Any:
    return batch


def fingerprint(*arrays: np.ndarray) -> str:
    """Return a short digest of labels and rows, to notice on resume that the data has changed."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
        digest.update(b"/")
    return digest.hexdigest()[:16]
