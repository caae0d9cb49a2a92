"""Where labelled images come from: a data set of the Hub, a local folder in its layout, or an image folder.

``open_source`` gives a ``Source``: labels at once, images one by one as PIL. What is missing or does not fit ends in a
DataError of one line that says what to do about it.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image

from ..errors import DataError
from ..system.network import data_set_trouble
from .embedded import fashion_mini_dir

if TYPE_CHECKING:
    from ..recipe import Recipe

HUB_PREFIX = "hfds/"
# Names that image folders have for the same split.
_SPLIT_FOLDERS = (("train", "training"), ("val", "valid", "validation", "test"))


class Source(Protocol):
    """Labelled images of one split."""

    labels: np.ndarray

    @property
    def class_names(self) -> Sequence[str] | None:
        """Names of the classes, where the data has them."""
        ...

    def image(self, index: int) -> Image.Image:
        """Return one image as it was stored."""
        ...


class HubSource:
    """A split of a data set that ``datasets`` has opened."""

    def __init__(self, rows: Any, *, input_key: str, target_key: str) -> None:
        columns = list(rows.column_names)
        for name, value in (("input_key", input_key), ("target_key", target_key)):
            if value not in columns:
                raise DataError(f"{name} is {value!r}, the data set has the columns {', '.join(columns)}")
        self._rows = rows.select_columns([input_key])
        self._key = input_key
        self.labels = np.asarray(rows.select_columns([target_key])[:][target_key])
        if not np.issubdtype(self.labels.dtype, np.integer):
            raise DataError(f"target_key: column {target_key!r} holds {self.labels.dtype}, class numbers are needed")
        self.class_names = getattr(rows.features[target_key], "names", None)

    def image(self, index: int) -> Image.Image:
        return self._rows[int(index)][self._key]


class FolderSource:
    """A folder with one sub-folder of image files for each class, in timm's order of classes."""

    def __init__(self, folder: Path) -> None:
        from timm.data.readers.reader_image_folder import find_images_and_targets

        samples, class_to_index = find_images_and_targets(str(folder))
        if not samples:
            raise DataError(f"{folder} holds no images")
        self._paths = [path for path, _ in samples]
        self.labels = np.asarray([label for _, label in samples])
        self.class_names = sorted(class_to_index, key=class_to_index.__getitem__)

    def image(self, index: int) -> Image.Image:
        return Image.open(self._paths[int(index)])


def open_source(recipe: "Recipe", split: str, data_dir: str | Path | None = None) -> Source:
    """Open one split of the recipe's data and check its labels.

    Args:
        recipe: its data keys.
        split: name of the split.
        data_dir: a local folder instead of the Hub: in the layout of the Hub, or with image folders.

    Raises:
        DataError: in one line.
    """
    if data_dir is not None:
        folder = Path(data_dir)
        if not folder.is_dir():
            raise DataError(f"--data-dir {data_dir} is not a folder")
        images = _image_folder(folder, split)
        source: Source = FolderSource(images) if images else _local(recipe, folder, split)
    elif recipe.dataset == "fashion_mini":
        source = _local(recipe, fashion_mini_dir(), split)
    elif recipe.dataset.startswith(HUB_PREFIX):
        rows = _load(recipe, recipe.dataset.removeprefix(HUB_PREFIX), recipe.dataset_config, split)
        source = HubSource(rows, input_key=recipe.input_key, target_key=recipe.target_key)
    else:
        raise DataError(f"dataset must be fashion_mini or hfds/OWNER/NAME, or give --data-dir; got {recipe.dataset!r}")
    _check_labels(recipe, source, split)
    return source


def name_of(where: str) -> str:
    """Return a name for a data set of the Hub or a folder that no other has, and that does not tell where it lies.

    Example:
        >>> name_of("path/to/CIFAR-10-C")
        'CIFAR-10-C-1f3870be'
    """
    if where.startswith(HUB_PREFIX):
        return where
    folder = Path(where).resolve()
    return f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def _check_labels(recipe: "Recipe", source: Source, split: str) -> None:
    if len(source.labels) == 0:
        raise DataError(f"split {split!r} is empty")
    low, high = int(source.labels.min()), int(source.labels.max())
    if low < 0:
        raise DataError(f"split {split!r} holds the label {low}: it has no labels to test on, choose another split")
    if high >= recipe.num_classes:
        raise DataError(f"split {split!r} holds the label {high}, num_classes is {recipe.num_classes}")
    if source.class_names and len(source.class_names) != recipe.num_classes:
        raise DataError(f"the data has {len(source.class_names)} classes, num_classes is {recipe.num_classes}")


def _image_folder(folder: Path, split: str) -> Path | None:
    """Return the sub-folder of a split if it holds one folder for each class."""
    others = next((names for names in _SPLIT_FOLDERS if split in names), ())
    for name in (split, *others):
        path = folder / name
        if path.is_dir() and any(child.is_dir() for child in path.iterdir()):
            return path
    return None


def _local(recipe: "Recipe", folder: Path, split: str) -> HubSource:
    name = recipe.dataset_config
    inside = folder / name if name is not None and (folder / name).is_dir() else folder
    try:
        # A folder with the Hub's README knows its configurations; without it they are sub-folders at most.
        described = name is not None and (folder / "README.md").is_file() and name in _config_names(folder)
        rows = _load(recipe, str(folder), name, split) if described else _load(recipe, str(inside), None, split)
    except DataError as error:
        rows = _load_files(recipe, inside, split, error)
    return HubSource(rows, input_key=recipe.input_key, target_key=recipe.target_key)


def _load_files(recipe: "Recipe", folder: Path, split: str, error: DataError) -> Any:
    """Open the files of one split by their names: where there are no others, or ``datasets`` names splits otherwise.

    Raises:
        DataError: the one given, where that does not help either.
    """
    import pyarrow.parquet

    files = sorted(map(str, folder.rglob(f"{split}-*.parquet")))
    try:
        rows = sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)
        if rows:
            return _load(recipe, "parquet", None, split, files=files)
    except (OSError, pyarrow.ArrowException, DataError):
        raise error from None
    if files:
        raise DataError(f"split {split!r} is empty") from error
    raise error


def _config_names(folder: Path) -> list[str]:
    import datasets

    try:
        return datasets.get_dataset_config_names(str(folder))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{folder} holds no data set: {' '.join(str(error).split())[:200]}") from error


def _load(recipe: "Recipe", path: str, config: str | None, split: str, *, files: list[str] | None = None) -> Any:
    """Call ``datasets.load_dataset``, with what can go wrong in one line each."""
    import datasets

    on_hub = recipe.dataset.startswith(HUB_PREFIX) and not Path(path).is_dir() and files is None
    try:
        return datasets.load_dataset(path, config, split=split, data_files={split: files} if files else None)
    except Exception as error:
        text = " ".join(str(error).split())
        trouble = data_set_trouble(error, path) if on_hub else None
        if trouble is not None:
            raise DataError(f"{trouble}, or give --data-dir with a local folder in the Hub's layout") from error
        if isinstance(error, datasets.exceptions.DatasetNotFoundError):
            raise DataError(f"{path} holds no data set: parquet files like data/train-*.parquet are needed") from error
        if isinstance(error, ValueError) and "split" in text.lower():
            raise DataError(f"{path} has no split {split!r}: {text[:200]}") from error
        if isinstance(error, (OSError, ValueError, datasets.exceptions.DatasetsError)):
            raise DataError(f"{path}, split {split!r}, cannot be read: {text[:300]}") from error
        raise
