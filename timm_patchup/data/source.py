"""Where labelled images come from: a dataset of the Hub, a local folder in the Hub's layout, or image folders.

``open_source`` returns a ``Source`` with all labels and access to single images. Missing or unsuitable data raises a
one-line DataError that states the next step; an image that cannot be decoded raises one with the image's name.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from ..errors import DataError, DataFailed, one_line
from ..recipe.parts import DataSpec
from ..system.network import dataset_problem
from .decode import Undecodable, convert_image, decode_rgb, open_image, to_pixels
from .embedded import fashion_mini_dir

HUB_PREFIX = "hfds/"
# Folder names that stand for the same split.
_SPLIT_FOLDERS = (("train", "training"), ("val", "valid", "validation", "test"))


class Source(ABC):
    """Labelled images of one split.

    Attributes:
        labels: int (N,).
        class_names: names of the classes, None if the data has none.
    """

    labels: np.ndarray
    class_names: Sequence[str] | None

    @abstractmethod
    def image(self, index: int, mode: str | None = None) -> Image.Image:
        """Return one image, as stored or converted to the mode RGB or L.

        Raises:
            DataFailed: it cannot be read; the line has its name.
        """

    @abstractmethod
    def describe(self, index: int) -> str:
        """Return the name of an image for messages: its file, or its place in the dataset."""

    def rgb(self, index: int) -> Tensor:
        """Return the pixels of one image as uint8 (3, H, W); raises as ``image`` does."""
        return to_pixels(self.image(index, "RGB"))


class EncodedSource(Source):
    """A source of image files."""

    @abstractmethod
    def encoded(self, index: int) -> bytes:
        """Return the bytes of an image file."""

    def image(self, index: int, mode: str | None = None) -> Image.Image:
        try:
            image = open_image(self.encoded(index))
            return image if mode is None else convert_image(image, mode)
        except (Undecodable, OSError) as error:
            raise self._failed(index, error) from error

    def rgb(self, index: int) -> Tensor:
        try:
            return decode_rgb(self.encoded(index))
        except (Undecodable, OSError) as error:
            raise self._failed(index, error) from error

    def _failed(self, index: int, error: Exception) -> DataFailed:
        reason = error.strerror if isinstance(error, OSError) else one_line(error, 200)
        return DataFailed(f"cannot read the image {self.describe(index)}: {reason}; replace or remove it")


class HubSource(EncodedSource):
    """A split opened by ``datasets``.

    Args:
        rows: the split.
        input_key: column of the images.
        target_key: column of the labels.
        title: name of the split for messages.
    """

    def __init__(self, rows: Any, *, input_key: str, target_key: str, title: str) -> None:
        import datasets

        columns = list(rows.column_names)
        for name, value in (("input_key", input_key), ("target_key", target_key)):
            if value not in columns:
                raise DataError(f"{name}: the dataset has no column {value!r}, only {', '.join(columns)}")
        if not isinstance(rows.features[input_key], datasets.Image):
            raise DataError(f"input_key: column {input_key!r} must hold images, got {rows.features[input_key]}")
        self._rows = rows.select_columns([input_key]).cast_column(input_key, datasets.Image(decode=False))
        self._key, self._title = input_key, title
        self.labels = np.asarray(rows.select_columns([target_key])[:][target_key])
        if not np.issubdtype(self.labels.dtype, np.integer):
            raise DataError(f"target_key: column {target_key!r} must hold class numbers, got {self.labels.dtype}")
        self.class_names = getattr(rows.features[target_key], "names", None)

    def encoded(self, index: int) -> bytes:
        value = self._rows[int(index)][self._key]
        if value is None:
            raise Undecodable("the row is empty")
        data: bytes = Path(value["path"]).read_bytes() if value["bytes"] is None else value["bytes"]
        return data

    def describe(self, index: int) -> str:
        path = (self._rows[int(index)][self._key] or {}).get("path")
        return f"{f'{path}, ' if path else ''}row {int(index)} of {self._title}"


class FolderSource(EncodedSource):
    """A folder with one subfolder of images per class, in timm's class order."""

    def __init__(self, folder: Path) -> None:
        from timm.data.readers.reader_image_folder import find_images_and_targets

        samples, class_to_index = find_images_and_targets(str(folder))
        if not samples:
            raise DataError(f"{folder} contains no images")
        self._paths = [path for path, _ in samples]
        self.labels = np.asarray([label for _, label in samples])
        self.class_names = sorted(class_to_index, key=class_to_index.__getitem__)

    def encoded(self, index: int) -> bytes:
        return Path(self._paths[int(index)]).read_bytes()

    def describe(self, index: int) -> str:
        return self._paths[int(index)]


def open_source(data: DataSpec, split: str, data_dir: str | Path | None = None) -> Source:
    """Open one split of a dataset and check its labels.

    Args:
        data: the dataset.
        split: name of the split.
        data_dir: a local folder to use instead: in the Hub's layout, or with image folders.

    Raises:
        DataError: the data is missing, cannot be read, or its labels do not fit ``num_classes``.
    """
    if data_dir is not None:
        folder = Path(data_dir)
        if not folder.is_dir():
            raise DataError(f"data_dir {data_dir} is not a folder")
        images = _image_folder(folder, split)
        source: Source = FolderSource(images) if images else _local(data, folder, split)
    elif data.dataset == "fashion_mini":
        source = _local(data, fashion_mini_dir(), split)
    elif data.dataset.startswith(HUB_PREFIX):
        rows = _load(data.dataset.removeprefix(HUB_PREFIX), data.dataset_config, split)
        title = f"split {split!r} of {data.dataset}"
        source = HubSource(rows, input_key=data.input_key, target_key=data.target_key, title=title)
    else:
        raise DataError(f"dataset must be fashion_mini or hfds/OWNER/NAME, got {data.dataset!r}; or give data_dir")
    _check_labels(data, source, split)
    return source


def name_of(where: str) -> str:
    """Return a unique name for a dataset of the Hub or a folder that does not reveal the folder's path.

    Example:
        >>> name_of("path/to/CIFAR-10-C")
        'CIFAR-10-C-1f3870be'
    """
    if where.startswith(HUB_PREFIX):
        return where
    folder = Path(where).resolve()
    return f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def _check_labels(data: DataSpec, source: Source, split: str) -> None:
    if len(source.labels) == 0:
        raise DataError(f"split {split!r} is empty")
    low, high = int(source.labels.min()), int(source.labels.max())
    if low < 0:
        raise DataError(f"split {split!r} has the label {low}, so it is not labelled: choose another split")
    if high >= data.num_classes:
        raise DataError(f"split {split!r} has the label {high}, but num_classes is {data.num_classes}")
    if source.class_names and len(source.class_names) != data.num_classes:
        raise DataError(f"the data has {len(source.class_names)} classes, but num_classes is {data.num_classes}")


def _image_folder(folder: Path, split: str) -> Path | None:
    """Return the subfolder of a split if it has one folder per class."""
    others = next((names for names in _SPLIT_FOLDERS if split in names), ())
    for name in (split, *others):
        path = folder / name
        if path.is_dir() and any(child.is_dir() for child in path.iterdir()):
            return path
    return None


def _local(data: DataSpec, folder: Path, split: str) -> HubSource:
    name = data.dataset_config
    inside = folder / name if name is not None and (folder / name).is_dir() else folder
    try:
        # The Hub's README lists the configurations; without it they can only be subfolders.
        listed = name is not None and (folder / "README.md").is_file() and name in _config_names(folder)
        rows = _load(str(folder), name, split) if listed else _load(str(inside), None, split)
    except DataError as error:
        rows = _load_files(inside, split, error)
    title = f"split {split!r} of {folder}"
    return HubSource(rows, input_key=data.input_key, target_key=data.target_key, title=title)


def _load_files(folder: Path, split: str, error: DataError) -> Any:
    """Open the files of one split by name, if the other splits are missing or ``datasets`` renames the split.

    Raises:
        DataError: the given one, if that does not help.
    """
    import pyarrow.parquet

    files = sorted(map(str, folder.rglob(f"{split}-*.parquet")))
    try:
        rows = sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)
        if rows:
            return _load("parquet", None, split, files=files)
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
        raise DataError(f"{folder} contains no dataset: {one_line(error, 200)}") from error


def _load(path: str, config: str | None, split: str, *, files: list[str] | None = None) -> Any:
    """Call ``datasets.load_dataset`` and turn its errors into one line each."""
    import datasets

    on_hub = files is None and not Path(path).is_dir()
    try:
        return datasets.load_dataset(path, config, split=split, data_files={split: files} if files else None)
    except Exception as error:
        problem = dataset_problem(error, path) if on_hub else None
        if problem is not None:
            raise DataError(f"{problem}, or give data_dir (--data-dir), a folder in the Hub's layout") from error
        if isinstance(error, datasets.exceptions.DatasetNotFoundError):
            raise DataError(f"{path} contains no dataset: expected parquet files like data/train-*.parquet") from error
        if isinstance(error, (OSError, ValueError, datasets.exceptions.DatasetsError)):
            raise DataError(f"{path}: cannot read split {split!r}: {one_line(error, 300)}") from error
        raise
