"""The data of a training run: the splits ``train``, ``val`` and ``test`` of a recipe, and their loaders.

``load_data`` opens and splits the data, ``training_loader`` and ``evaluation_loader`` give a process its batches.
``batch_loader`` and ``fingerprint`` serve the evaluation suites, too.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from ..errors import DataError
from ..recipe import Recipe
from ..recipe.parts import AugmentSpec, DataSpec, ImageSpec
from ..system.signals import leave_signals_to_parent
from .batches import EvaluationBatches, TrainingBatches
from .images import Images, open_images
from .source import open_source, open_test, open_train
from .splits import hold_out, take_per_class, take_stratified


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
        kind = "chooses the epoch" if self.held_out else "the test set, nothing is chosen on it"
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
    if recipe.select_split is not None:
        val_source = open_source(data, recipe.select_split, data_dir)
        train_rows, val_rows = all_rows, np.arange(len(val_source.labels))
    else:
        val_source = train_source
        kept, held = hold_out(train_source.labels[all_rows], recipe.val_fraction, seed=data.split_seed)
        train_rows, val_rows = all_rows[kept], all_rows[held]
    if recipe.train_per_class is not None:
        try:
            picked = take_per_class(train_source.labels[train_rows], recipe.train_per_class, seed=data.split_seed)
        except ValueError as error:
            raise DataError(f"train_per_class: {error}") from error
        train_rows = train_rows[picked]
    if recipe.limit is not None:
        sources = (train_source, val_source, test_source)
        train_rows, val_rows, test_rows = (
            rows[take_stratified(source.labels[rows], recipe.limit, seed=data.split_seed)]
            for source, rows in zip(sources, (train_rows, val_rows, test_rows))
        )
    if recipe.val_fraction and len(val_rows) == 0:
        raise DataError(
            f"val_fraction {recipe.val_fraction} of {len(train_source.labels)} samples is less than one sample"
        )
    if len(train_rows) < recipe.batch_size:
        raise DataError(f"batch_size {recipe.batch_size} is larger than the training set of {len(train_rows)} samples")
    test = open_images(test_source, test_rows, images)
    held_out = recipe.val_fraction > 0 or recipe.select_split is not None
    parts = [train_source.labels, train_rows, val_rows, test_source.labels, test_rows]
    if recipe.select_split is not None:
        parts.append(val_source.labels)
    return Data(
        train=open_images(train_source, train_rows, images, augment),
        val=open_images(val_source, val_rows, images) if held_out else test,
        test=test,
        held_out=held_out,
        class_names=train_source.class_names,
        fingerprint=fingerprint(*parts),
    )


def training_loader(
    images: Images, recipe: Recipe, *, rank: int, world_size: int, pin_memory: bool = False
) -> tuple[DataLoader, TrainingBatches]:
    """Return the training loader of a process, and its sampler; call ``begin`` of the sampler before each epoch."""
    batches = TrainingBatches(
        len(images),
        batch_size=recipe.batch_size,
        micro_batches=recipe.grad_accum_steps,
        rank=rank,
        world_size=world_size,
        seed=recipe.seed,
        repeats=max(1, recipe.aug_repeats),
    )
    return batch_loader(images, batches, workers=recipe.workers, pin_memory=pin_memory), batches


def evaluation_loader(
    images: Images, recipe: Recipe, *, rank: int, world_size: int, pin_memory: bool = False
) -> DataLoader:
    """Return the loader of a process for its share of the samples, each evaluated once."""
    size = recipe.validation_batch_size
    batches = EvaluationBatches(len(images), batch_size=size, rank=rank, world_size=world_size)
    return batch_loader(images, batches, workers=recipe.workers, pin_memory=pin_memory)


def batch_loader(images: Any, batches: Sampler, *, workers: int, pin_memory: bool = False) -> DataLoader:
    """Return a loader of a dataset with whole batches (``__getitems__``) that leaves the global generator alone."""
    return DataLoader(
        images,
        batch_sampler=batches,
        collate_fn=identity_collate,
        num_workers=workers,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
        worker_init_fn=leave_signals_to_parent,
        generator=torch.Generator(),  # without it, making an iterator draws from the global generator
    )


def identity_collate(batch: Any) -> Any:
    return batch


def fingerprint(*arrays: np.ndarray) -> str:
    """Return a short digest of labels and rows, to notice on resume that the data has changed."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
        digest.update(b"/")
    return digest.hexdigest()[:16]
