"""What a dataset contains, for recipes whose data keys are ``auto``: its splits, its columns and its classes.

``discover`` looks at a folder or at a dataset of the Hub and returns the keys of a recipe that follow from it. Keys
that were given are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.settings import AUTO
from ..errors import DataError, brief
from ..recipe import Recipe
from .folders import WHOLE, by_lower_case, count_other_files, find_split_folder, list_classes, list_split_folders
from .source import HUB_PREFIX, HubSource, list_splits, load_rows

VAL_FRACTION, TEST_FRACTION = 0.1, 0.2
RESERVED_NAMES = (AUTO, "fashion_mini")
_TRAIN = ("train", "training", WHOLE)
_VALIDATION = ("val", "valid", "validation", "dev")
_TEST = ("test", "testing", *_VALIDATION)
_SHOWN_CLASSES = 12
_IMAGE_COLUMNS, _LABEL_COLUMNS = ("image", "img"), ("label", "labels", "fine_label", "class", "target")


@dataclass(frozen=True)
class DataDiscovery:
    """What was found.

    Attributes:
        keys: keys of a recipe, for those that were ``auto``.
        summary: what was found, in a few words.
    """

    keys: dict[str, Any]
    summary: str


def discover(recipe: Recipe, data_dir: str | Path | None) -> DataDiscovery:
    """Find the data keys of a recipe that are ``auto``.

    Raises:
        DataError: there is no data, it has fewer than two classes, or a key cannot be decided.
    """
    folder = None if data_dir is None else Path(data_dir)
    if folder is not None and not folder.is_dir():
        raise DataError(f"data_dir {data_dir} is not a folder: give the folder of the images (--data-dir)")
    if folder is None and recipe.dataset == AUTO:
        raise DataError("no images: give their folder (--data-dir FOLDER) or a dataset (--dataset hfds/USER/NAME)")
    named = folder_name(folder) if folder is not None and recipe.dataset == AUTO else recipe.dataset
    keys: dict[str, Any] = {"dataset": named}
    image_folders = list_split_folders(folder) if folder is not None else []
    keys |= _splits(recipe, image_folders or list_splits(keys["dataset"], recipe.dataset_config, folder))
    images = find_split_folder(folder, keys["train_split"]) if folder and image_folders else None
    if images is not None and folder is not None:
        keys |= {"input_key": "image", "target_key": "label"}
        class_names: Sequence[str] = list_classes(images)
        keys["num_classes"] = len(class_names)
        _refuse_one_class(class_names, images)
        notes = _missing_classes(class_names, folder, keys) + _ignored_files(images)
    else:
        rows = load_rows(keys["dataset"], recipe.dataset_config, keys["train_split"], folder)
        keys |= _columns(recipe, rows.features)
        title = f"split {brief(keys['train_split'])} of {keys['dataset']}"
        source = HubSource(rows, input_key=keys["input_key"], target_key=keys["target_key"], title=title)
        keys["num_classes"] = _count_classes(source, keys)
        class_names = source.class_names or ()
        notes = []
    found = {name: value for name, value in keys.items() if name in recipe.unresolved}
    return DataDiscovery(found, "; ".join([_describe(recipe, keys | _given(recipe, keys), class_names), *notes]))


def folder_name(folder: Path) -> str:
    """Return the name to record for the data in a folder, which is not its path."""
    name = folder.resolve().name
    return f"{name}_folder" if name in RESERVED_NAMES else name


def _given(recipe: Recipe, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in keys if name not in recipe.unresolved}


def _splits(recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
    """Decide which split trains, which chooses the best epoch and which is tested."""
    train = recipe.train_split if recipe.train_split != AUTO else _first(_TRAIN, names)
    if train is None:
        raise DataError(f"no split to train on among {', '.join(names)}: name it with train_split (--train-split)")
    others = [name for name in names if name != train]
    test = recipe.val_split if recipe.val_split != AUTO else _first(_TEST, others)
    test_fraction = recipe.test_fraction
    if test_fraction == AUTO:
        test_fraction = 0.0 if test is not None else TEST_FRACTION
    select = recipe.select_split
    if select == AUTO:
        held_out = recipe.val_fraction not in (0, AUTO) or recipe.val_per_class is not None
        wanted = not held_out and not test_fraction and recipe.val_split == AUTO
        select = _first(_VALIDATION, [name for name in others if name != test]) if wanted else None
    val_fraction = recipe.val_fraction
    if val_fraction == AUTO:
        val_fraction = 0.0 if select is not None or recipe.val_per_class is not None else VAL_FRACTION
    return {
        "train_split": train,
        "val_split": test or "test",
        "select_split": select,
        "val_fraction": val_fraction,
        "test_fraction": test_fraction,
    }


def _first(wanted: Sequence[str], names: Sequence[str]) -> str | None:
    found = by_lower_case(names)
    return next((found[name] for name in wanted if name in found), None)


def _columns(recipe: Recipe, features: Mapping[str, Any]) -> dict[str, str]:
    import datasets

    def choose(key: str, given: str, candidates: list[str], usual: Sequence[str], what: str) -> str:
        if given != AUTO:
            return given
        chosen = candidates[0] if len(candidates) == 1 else _first(usual, candidates)
        if chosen is None:
            columns = ", ".join(candidates)
            raise DataError(f"{key}: which column has the {what}? Choose one with --{key.replace('_', '-')}: {columns}")
        return chosen

    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    if not images and recipe.input_key == AUTO:
        raise DataError(
            f"no column has images, there is only {', '.join(features)}: is this the folder of your images?"
        )
    labels = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    numbers = [name for name, kind in features.items() if "int" in str(getattr(kind, "dtype", ""))]
    if not (labels or numbers) and recipe.target_key == AUTO:
        raise DataError(
            f"no column has class numbers, there is only {', '.join(features)}: if the classes are text, "
            f"class_encode_column of datasets numbers them"
        )
    return {
        "input_key": choose("input_key", recipe.input_key, images, _IMAGE_COLUMNS, "images"),
        "target_key": choose("target_key", recipe.target_key, labels or numbers, _LABEL_COLUMNS, "classes"),
    }


def _count_classes(source: HubSource, keys: Mapping[str, Any]) -> int:
    """Return the number of classes; refuse a column that numbers the images instead."""
    if source.class_names is not None:
        _refuse_one_class(source.class_names, keys["dataset"])
        return len(source.class_names)
    different, images = len(np.unique(source.labels)), len(source.labels)
    column = f"column {brief(keys['target_key'])}"
    if different > images // 2:
        raise DataError(
            f"{column} has {different:,} different values for {images:,} images, which are no classes: "
            f"choose another column with target_key (--target-key)"
        )
    if different < 2:
        raise DataError(f"{column} has one class: a classifier needs at least two")
    return int(source.labels.max()) + 1


def _refuse_one_class(names: Sequence[str], where: str | Path) -> None:
    if len(names) < 2:
        raise DataError(f"{where} has one class, {brief(names[0])}: a classifier needs at least two class folders")


def _missing_classes(names: Sequence[str], folder: Path, keys: Mapping[str, Any]) -> list[str]:
    """Return a note per split without images of some class: it is used as it is."""
    notes = []
    for split in {keys["val_split"], keys["select_split"]} - {None}:
        images = None if keys["test_fraction"] else find_split_folder(folder, split)
        missing = sorted(set(names) - set(list_classes(images, allow_empty=True))) if images else []
        if missing:
            shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            notes.append(f"note: {split}/ has no images of {shown}")
    return notes


def _ignored_files(images: Path) -> list[str]:
    """Return a note if there are files that are not images: they may be photos in a format that cannot be read."""
    others = count_other_files(images)
    if not others:
        return []
    kinds = ", ".join(sorted(others)[:4]) + (", ..." if len(others) > 4 else "")
    return [f"note: {others.total()} other file{'s' if others.total() > 1 else ''} in {images.name}/ ignored ({kinds})"]


def _describe(recipe: Recipe, keys: Mapping[str, Any], class_names: Sequence[str]) -> str:
    more = ", ..." if len(class_names) > _SHOWN_CLASSES else ""
    listed = f" ({', '.join(class_names[:_SHOWN_CLASSES])}{more})" if class_names else ""
    data = f"{keys['num_classes']} classes{listed} from {keys['dataset'].removeprefix(HUB_PREFIX)}"
    test = f"tested on {keys['val_split']}"
    if keys["test_fraction"]:
        test = f"no test images: {keys['test_fraction']:.0%} of each class set apart for the test"
    select = "epoch chosen on the test images" if recipe.best_on_test else "the last epoch is tested"
    if keys["select_split"] is not None:
        select = f"epoch chosen on {keys['select_split']}"
    elif recipe.val_per_class is not None:
        select = f"epoch chosen on {recipe.val_per_class} training images of each class"
    elif keys["val_fraction"]:
        select = f"epoch chosen on {keys['val_fraction']:.0%} of the training images"
    return f"{data}; {test}; {select}"
