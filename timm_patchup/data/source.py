"""Where labelled images come from: a dataset of the Hub, a local folder in the Hub's layout, or image folders.

``open_source`` returns a ``Source`` with all labels and access to single images. Missing or unsuitable data raises a
one-line DataError with the next step.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, HubError, brief, one_line
from ..recipe.parts import DataSpec
from ..system.files import read_file
from ..system.network import dataset_problem
from .decode import Undecodable
from .embedded import fashion_mini_dir
from .encoded import EncodedSource, Source
from .folders import FolderSource, find_split_folder, list_classes, refuse_special_files
from .splits import hold_out

HUB_PREFIX = "hfds/"


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
                raise DataError(f"{name}: the dataset has no column {brief(value)}, only {', '.join(columns)}")
        if not isinstance(rows.features[input_key], datasets.Image):
            raise DataError(f"input_key: column {brief(input_key)} must hold images, got {rows.features[input_key]}")
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
        data: bytes = read_file(Path(value["path"])) if value["bytes"] is None else value["bytes"]
        return data

    def describe(self, index: int) -> str:
        path = (self._rows[int(index)][self._key] or {}).get("path")
        return f"{f'{path}, ' if path else ''}row {int(index)} of {self._title}"


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
            raise DataError(f"data_dir {data_dir} is not a folder: give the folder of the images (--data-dir)")
        images = find_split_folder(folder, split)
        source: Source = _open_folder(data, folder, images) if images else _open_rows(data, split, folder)
    else:
        source = _open_rows(data, split, None)
    _require_labels(data, source, split)
    return source


def load_rows(dataset: str, config: str | None, split: str, folder: Path | None) -> Any:
    """Open a split with ``datasets``: of a local folder in the Hub's layout, of the Hub, or of the package.

    Raises:
        DataError: the data is missing or cannot be read.
    """
    if folder is not None or dataset == "fashion_mini":
        return _load_local(config, folder or fashion_mini_dir(), split)
    if dataset.startswith(HUB_PREFIX):
        return _load(dataset.removeprefix(HUB_PREFIX), config, split)
    raise DataError(
        f"dataset must be fashion_mini or hfds/OWNER/NAME, got {brief(dataset)}; or give data_dir (--data-dir)"
    )


def open_train(data: DataSpec, data_dir: str | Path | None = None) -> tuple[Source, np.ndarray]:
    """Return the source of the training images, and their rows in it.

    Raises:
        DataError: as ``open_source``.
    """
    source = open_source(data, data.train_split, data_dir)
    return source, _without_test(data, source)[0]


def open_test(data: DataSpec, data_dir: str | Path | None = None) -> tuple[Source, np.ndarray]:
    """Return the source of the test images, and their rows in it: a split, or a stratified share of the train split.

    Raises:
        DataError: as ``open_source``.
    """
    source = open_source(data, data.train_split if data.test_fraction else data.val_split, data_dir)
    return source, _without_test(data, source)[1]


def _without_test(data: DataSpec, source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to train on and those to test on, of a source that has both or only one of them."""
    if not data.test_fraction:
        rows = np.arange(len(source.labels))
        return rows, rows
    rest, test = hold_out(source.labels, data.test_fraction, seed=data.split_seed)
    if len(test) == 0:
        share = f"test_fraction {data.test_fraction} of {len(source.labels)} images"
        raise DataError(f"{share} is less than one image, or all that a class has: raise it, or add images")
    return rest, test


def name_of(where: str) -> str:
    """Return a unique name for a dataset of the Hub or a folder that does not reveal the folder's path.

    A folder is named by its last part and a digest of its whole path: ``CIFAR-10-C-1f3870be``.
    """
    if where.startswith(HUB_PREFIX):
        return where
    folder = Path(where).resolve()
    return f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def _require_labels(data: DataSpec, source: Source, split: str) -> None:
    if len(source.labels) == 0:
        raise DataError(f"split {brief(split)} is empty")
    low, high = int(source.labels.min()), int(source.labels.max())
    if low < 0:
        raise DataError(f"split {brief(split)} has the label {low}, so it is not labelled: choose another split")
    if high >= data.num_classes:
        raise DataError(
            f"split {brief(split)} has the label {high}, but num_classes is {data.num_classes}: "
            f"set num_classes to at least {high + 1} (--num-classes), or choose another target_key"
        )
    if source.class_names and len(source.class_names) != data.num_classes:
        raise DataError(
            f"the data has {len(source.class_names)} classes, but num_classes is {data.num_classes}: "
            f"set num_classes to {len(source.class_names)} (--num-classes)"
        )


def _open_folder(data: DataSpec, folder: Path, images: Path) -> FolderSource:
    """Open an image folder; the training images define the classes, if they are there."""
    train = find_split_folder(folder, data.train_split)
    return FolderSource(images, None if train in (None, images) else list_classes(train))


def _open_rows(data: DataSpec, split: str, folder: Path | None) -> HubSource:
    rows = load_rows(data.dataset, data.dataset_config, split, folder)
    title = f"split {brief(split)} of {data.dataset if folder is None else folder}"
    return HubSource(rows, input_key=data.input_key, target_key=data.target_key, title=title)


def _load_local(name: str | None, folder: Path, split: str) -> Any:
    refuse_special_files(folder)
    inside = folder / name if name is not None and (folder / name).is_dir() else folder
    try:
        # The Hub's README lists the configurations; without it they can only be subfolders.
        listed = name is not None and (folder / "README.md").is_file() and name in _config_names(folder)
        return _load(str(folder), name, split) if listed else _load(str(inside), None, split)
    except DataError as error:
        return _load_files(inside, split, error)


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
        raise DataError(f"split {brief(split)} is empty") from error
    raise error


def list_splits(dataset: str, config: str | None, folder: Path | None) -> list[str]:
    """Return the names of the splits that ``datasets`` finds on the Hub or in a local folder.

    Raises:
        DataError: there is no dataset, or it has several configurations and none was chosen.
    """
    import datasets

    path = dataset.removeprefix(HUB_PREFIX)
    if folder is not None:
        refuse_special_files(folder)
        path = str(folder)
    try:
        return list(datasets.get_dataset_split_names(path, config))
    except Exception as error:
        problem = dataset_problem(error, path) if folder is None else None
        if problem is not None:
            raise _out_of_reach(problem, "a folder with the images") from error
        if isinstance(error, datasets.exceptions.DatasetNotFoundError) or not _has_files(folder):
            form = "train/CLASS/*.jpg and test/CLASS/*.jpg, CLASS/*.jpg, or parquet files like data/train-*.parquet"
            raise DataError(f"{path} contains no images in a known layout: expected {form}") from error
        if isinstance(error, (OSError, ValueError, datasets.exceptions.DatasetsError)):
            raise DataError(f"{path}: cannot list its splits: {one_line(error, 300)}") from error
        raise


def _out_of_reach(problem: HubError, folder: str) -> DataError:
    return DataError(f"{problem}, or give data_dir (--data-dir), {folder}", retry=problem.retry)


def _has_files(folder: Path | None) -> bool:
    return folder is None or any(path.is_file() for path in folder.rglob("*"))


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
            raise _out_of_reach(problem, "a folder in the Hub's layout") from error
        if isinstance(error, datasets.exceptions.DatasetNotFoundError):
            raise DataError(f"{path} contains no dataset: expected parquet files like data/train-*.parquet") from error
        if isinstance(error, (OSError, ValueError, datasets.exceptions.DatasetsError)):
            raise DataError(f"{path}: cannot read split {brief(split)}: {one_line(error, 300)}") from error
        raise
