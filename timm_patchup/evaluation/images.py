"""The test images as a suite sees them: values in [0, 1], at the size of a model, with the row of every sample.

The row in the split identifies a sample: what is random about it follows from the row, so it is the same for every
model, batch size, number of processes and ``--limit``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..data.loader import EVALUATION, MemoryImages, SampleKey, StoredImages, evaluation_loader, fingerprint
from ..data.source import Source, open_source
from ..data.splits import take_stratified
from ..errors import DataError
from ..recipe import Recipe

# What says which images these are; the other keys of a recipe say how a model wants them.
DATA_KEYS = ("dataset", "dataset_config", "val_split", "input_key", "target_key", "num_classes", "split_seed")
Batch = tuple[Tensor, Tensor, Sequence[int]]


def unit_recipe(recipe: Recipe, *, batch_size: int | None = None) -> Recipe:
    """Return the recipe with the normalisation taken out: its images are in [0, 1]."""
    channels = recipe.input_size[0]
    changes = {"mean": [0.0] * channels, "std": [1.0] * channels}
    sizes = {} if batch_size is None else {"validation_batch_size": batch_size}
    return Recipe.from_dict(recipe.to_dict() | changes | sizes)


def data_of(recipe: Recipe) -> dict[str, object]:
    """Return the keys that say which images a recipe is tested on."""
    return {name: getattr(recipe, name) for name in DATA_KEYS}


class TestImages(Dataset[Batch]):
    """Labelled test images in [0, 1]."""

    __test__ = False  # the name is not that of a test

    def __init__(self, source: Source, rows: np.ndarray, recipe: Recipe) -> None:
        self.recipe, self.rows, self._source = recipe, rows, source
        kind = StoredImages if recipe.crop_padding is None else MemoryImages
        self._images = kind(source, rows, recipe)
        self.labels = self._images.labels
        self.class_names = source.class_names
        self.stored_size = source.image(int(rows[0])).size  # (W, H), before the model's transforms
        self.kept: dict[tuple[Any, ...], Tensor] = {}  # what suites made of batches and the next model sees, too

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, keys: Sequence[SampleKey]) -> Batch:
        images, labels = self._images.__getitems__(keys)
        return images, labels, self.rows[[sample for _, sample in keys]].tolist()

    def fingerprint(self) -> str:
        """Return a digest of labels, rows and the pixels of some samples: other images of the same name are noticed."""
        some = self.rows[:: max(1, len(self.rows) // 32)]
        return fingerprint(self.labels.numpy(), self.rows, *(np.asarray(self._source.image(int(row))) for row in some))

    def loader(self, *, rank: int = 0, world_size: int = 1) -> DataLoader:
        """Return the batches of a process; together the processes have every sample once.

        Batches are shared out whole: what attacks find for a sample depends on the others of its batch.
        """
        return evaluation_loader(self, self.recipe, rank=rank, world_size=world_size, whole=True)

    def spread(self, count: int) -> Batch:
        """Return so many samples, the same on every process, with the classes in their proportions.

        The first ones would do only where the samples lie in no order: image folders hold one class after the other.
        """
        samples = take_stratified(self.labels.numpy(), count, seed=self.recipe.split_seed)
        return self.__getitems__([(EVALUATION, int(sample)) for sample in samples])


def load_images(recipe: Recipe, data_dir: str | Path | None, *, limit: int | None, batch_size: int) -> TestImages:
    """Open the test split of a recipe; with a limit, so many samples with the classes in their proportions.

    Raises:
        DataError: the data is missing, or there is nothing to tell apart in it.
    """
    source = open_source(recipe, recipe.val_split, data_dir)
    rows = np.arange(len(source.labels))
    if limit is not None:
        rows = rows[take_stratified(source.labels, limit, seed=recipe.split_seed)]
    classes = np.unique(source.labels[rows])
    if len(classes) < 2:
        raise DataError(
            f"the {len(rows)} test samples of {recipe.dataset} are all of class {classes[0]}: "
            f"an evaluation needs two classes at least, give a larger --limit or other data"
        )
    return TestImages(source, rows, unit_recipe(recipe, batch_size=batch_size))
