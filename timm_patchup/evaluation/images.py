"""The test images as suites see them: in [0, 1], at the size of a model, with the row of every sample.

The row in the split identifies a sample. Random changes depend on the seed and the row, so they are the same for every
model, batch size, number of processes and ``limit``.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.batches import EvaluationBatches
from ..data.encoded import Source
from ..data.finish import Finish
from ..data.images import EVALUATION, open_images
from ..data.loader import ImageLoader, fingerprint
from ..data.source import open_test
from ..data.splits import take_stratified
from ..errors import DataError, brief
from ..recipe.parts import DataSpec, ImageSpec

Batch = tuple[Tensor, Tensor, Sequence[int]]
_CPU = torch.device("cpu")


def unit_range(images: ImageSpec) -> ImageSpec:
    """Return the spec without normalisation, so that images are in [0, 1]."""
    channels = images.input_size[0]
    return replace(images, mean=(0.0,) * channels, std=(1.0,) * channels)


def shared_spec(images: ImageSpec) -> ImageSpec:
    """Return a spec that is equal for models that see the same pixels: timm fills borders with a model's mean."""
    return images if images.crop_mode == "border" else unit_range(images)


class TestImages:
    """Labelled test images in [0, 1].

    Args:
        source: the stored images.
        rows: int (N,), the rows of the source to use.
        data: the dataset they belong to.
        images: size and crop; its mean only fills borders, pixels are not normalised.
        batch_size: images per batch of a process.
    """

    __test__ = False  # not a test class, despite its name

    def __init__(
        self, source: Source, rows: np.ndarray, data: DataSpec, images: ImageSpec, *, batch_size: int = 100
    ) -> None:
        self.data, self.spec, self.rows, self.batch_size = data, images, rows, batch_size
        self._source = source
        self._images = open_images(source, rows, images)
        self._images.spec = unit_range(images)  # what loaders normalise with
        self.labels = self._images.labels
        self.class_names = source.class_names
        self.stored_size = source.image(int(rows[0])).size  # (W, H), before resizing
        self.cache: dict[tuple[Any, ...], Tensor] = {}  # altered batches that the next model needs again

    def __len__(self) -> int:
        return len(self.rows)

    def require_order(self, names: Sequence[str], whose: str) -> None:
        """Raise DataError if a model has a class under another number than these images.

        Names that only one of them has may be another spelling: they are not compared.
        """
        for number, (name, expected) in enumerate(zip(self.class_names or (), names)):
            if name != expected and name in names:
                raise DataError(
                    f"class {brief(name)} is number {number} in the test data, but {names.index(name)} in {whose}: "
                    f"test it on the classes that it was trained on, in the same order"
                )

    def fingerprint(self) -> str:
        """Return a digest of labels, rows and some pixels, to notice other images of the same name."""
        some = self.rows[:: max(1, len(self.rows) // 32)]
        return fingerprint(self.labels.numpy(), self.rows, *(np.asarray(self._source.image(int(row))) for row in some))

    def loader(
        self, *, rank: int = 0, world_size: int = 1, device: torch.device = _CPU
    ) -> tuple[ImageLoader, list[list[int]]]:
        """Return the batches of a process, and the rows of each; the processes together see every sample once.

        Whole batches are distributed, because what an attack finds for a sample depends on its batch.
        """
        batches = EvaluationBatches(len(self), batch_size=self.batch_size, rank=rank, world_size=world_size, whole=True)
        loader = ImageLoader(self._images, batches, workers=self.data.workers, device=device)
        return loader, [self.rows[samples].tolist() for samples in batches.batches]

    def spread(self, count: int) -> Batch:
        """Return ``count`` samples with unchanged class proportions, the same on every process.

        The first samples would not do: image folders are sorted by class.
        """
        samples = take_stratified(self.labels.numpy(), count, seed=self.data.split_seed)
        batch = self._images.__getitems__([(EVALUATION, int(sample)) for sample in samples])
        return Finish(self._images.spec, None, _CPU)(batch.pixels), batch.labels, self.rows[samples].tolist()


def load_images(
    data: DataSpec,
    images: ImageSpec,
    *,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    batch_size: int = 100,
) -> TestImages:
    """Open the test split of a dataset, or ``limit`` of its samples with unchanged class proportions.

    Raises:
        DataError: the data is missing, or has fewer than two classes.
    """
    source, rows = open_test(data, data_dir)
    if limit is not None:
        rows = rows[take_stratified(source.labels[rows], limit, seed=data.split_seed)]
    classes = np.unique(source.labels[rows])
    if len(classes) < 2:
        raise DataError(
            f"the {len(rows)} test samples of {data.dataset} are all of class {classes[0]}: "
            f"an evaluation needs at least two classes, use a larger limit or other data"
        )
    return TestImages(source, rows, data, images, batch_size=batch_size)
