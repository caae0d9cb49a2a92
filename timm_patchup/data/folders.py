"""Image folders: one subfolder of images per class, in timm's order.

What would silently train another model than the user thinks is refused: an empty class folder, images outside of class
folders, a class folder inside another, a class that only the test images have. Files that are not images and hidden
folders are ignored.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import DataError
from ..system.files import read_file
from .decode import image_types
from .encoded import EncodedSource

# The name of the split of a folder that has class folders and no splits; ``datasets`` means all splits by it, too.
WHOLE = "all"
# Folder names that stand for the same split, in capitals, too.
_SPLIT_FOLDERS = (("train", "training"), ("val", "valid", "validation", "test", "testing"))
# Files in which ``datasets`` finds the labels of images without class folders.
_LABEL_FILES = ("metadata.csv", "metadata.jsonl")


class FolderSource(EncodedSource):
    """The images of one folder.

    Args:
        folder: has one subfolder per class.
        class_names: the classes, in order, if another folder decides them: the test images have the classes of the
            training images, even if some have no test image.

    Raises:
        DataError: no images, an empty class folder, or a class that ``class_names`` does not have.
    """

    def __init__(self, folder: Path, class_names: Sequence[str] | None = None) -> None:
        own = list_classes(folder, allow_empty=class_names is not None)
        self.class_names = list(own if class_names is None else class_names)
        extra = sorted(set(own) - set(self.class_names))
        if extra:
            way = "add training images, or remove them here"
            raise DataError(f"{folder} has images of {_shown(extra)}, which the training images do not have: {way}")
        known = {name: index for index, name in enumerate(self.class_names)}
        walked = [(str(path / name), known[path.name]) for path, images, _ in _walk(folder) for name in images]
        samples = sorted(walked, key=lambda sample: _order(sample[0]))
        self._paths = [path for path, _ in samples]
        self.labels = np.asarray([label for _, label in samples], dtype=np.int64)

    def encoded(self, index: int) -> bytes:
        return read_file(Path(self._paths[int(index)]))

    def describe(self, index: int) -> str:
        return self._paths[int(index)]


def find_split_folder(folder: Path, split: str) -> Path | None:
    """Return the folder of a split if it has class folders: a subfolder, or the folder itself for ``WHOLE``."""
    if split == WHOLE:
        return folder if _subfolders(folder) and not _is_hub_layout(folder) else None
    others = next((names for names in _SPLIT_FOLDERS if split.lower() in names), ())
    inside = by_lower_case(_subfolders(folder))
    for name in (split, *(inside[name] for name in (split.lower(), *others) if name in inside)):
        path = folder / name
        if path.is_dir() and _subfolders(path):
            return path
    return None


def list_split_folders(folder: Path) -> list[str]:
    """Return the names of the splits that are image folders, ``[WHOLE]`` for class folders without splits.

    Raises:
        DataError: the splits are one level below, or their images are in no class folders: in both cases the names of
            the splits would be mistaken for classes.
    """
    named = _named_splits(folder)
    if named:
        return named
    below = next((name for name in _subfolders(folder) if _named_splits(folder / name)), None)
    if below is not None:
        shown = ", ".join(f"{name}/" for name in _named_splits(folder / below))
        raise DataError(f"{folder} has no images itself, but {below}/ has {shown}: give {folder / below}")
    with_images = (path for path, images, _ in _walk(folder) if images)
    first = next(with_images, None)
    if first is None or _is_hub_layout(folder):
        return []
    classless = {folder, *(folder / name for name in _called_as_splits(folder))}
    if first not in classless or any(path not in classless for path in with_images):
        return [WHOLE]
    if any(next(folder.rglob(name), None) for name in _LABEL_FILES):
        return []
    target = first / "CLASS"
    raise DataError(f"{first} has images, but no class folders: move each to the folder of its class, {target}")


def _named_splits(folder: Path) -> list[str]:
    """Return the names of the splits in a folder that have class folders; unlabelled images do not make a split."""
    return [name for name in _called_as_splits(folder) if _subfolders(folder / name)]


def _called_as_splits(folder: Path) -> list[str]:
    inside = by_lower_case(_subfolders(folder))
    return [inside[name] for names in _SPLIT_FOLDERS for name in names if name in inside]


def by_lower_case(names: Iterable[str]) -> dict[str, str]:
    """Return names by what they are in lower case; of ``Train`` and ``train``, the latter."""
    return {name.lower(): name for name in sorted(names)}


def list_classes(folder: Path, *, allow_empty: bool = False) -> list[str]:
    """Return the classes of a folder in timm's order; they are named after the folders that have the images.

    Raises:
        DataError: no images, images outside of class folders, a class folder without images, one inside another, or one
            whose name is not UTF-8.
    """
    found, filled, seen = set(), set(), set()
    for path, images, _ in _walk(folder):  # a folder comes before those inside it
        if not images:
            continue
        if path == folder:
            raise DataError(
                f"{folder / images[0]} is in no class folder: move such images to the folder of their class"
            )
        if outer := next((above for above in path.parents if above in seen), None):
            raise DataError(f"{outer} has images, and so has {path}: put all images of a class into one folder")
        seen.add(path)
        found.add(path.name)
        filled.add(path.relative_to(folder).parts[0])
    if not found:
        raise DataError(f"{folder} contains no images")
    foreign = sorted(name for name in found if not _is_text(name))
    if foreign:
        raise DataError(f"{folder}: the name of the class folder {_shown(foreign)} is not UTF-8: rename it")
    empty = sorted(set(_subfolders(folder)) - filled)
    if empty and not allow_empty:
        raise DataError(f"{folder}: class folder {_shown(empty)} has no images: add some, or remove the folder")
    return sorted(found, key=_order)


def _order(name: str) -> tuple[list[int | str], str]:
    """Return the key that sorts classes and images as timm does, with the name itself last.

    To timm, names that differ in case only or in zeros before a number are equal: their order, and so the number of a
    class, would differ between processes, runs and file systems.
    """
    parts = re.split(r"(\d+)", name.lower())
    return [int(part) if part.isdecimal() else part for part in parts], name


def count_other_files(folder: Path) -> Counter[str]:
    """Return how many files of a folder are ignored, because they are not images, by the ends of their names."""
    others: Counter[str] = Counter()
    for _, _, names in _walk(folder):
        others.update(os.path.splitext(name)[1].lower() or name for name in names)
    return others


class _Listing(NamedTuple):
    """The visible files of a folder, by name: images, and all others."""

    path: Path
    images: list[str]
    others: list[str]


def _walk(folder: Path, above: Sequence[Path] = ()) -> Iterator[_Listing]:
    """Yield a folder and all visible ones inside it, also through links.

    Raises:
        DataError: a link leads back to a folder that it is in.
    """
    types, listing, inside = image_types(), _Listing(folder, [], []), []
    for entry in _visible(folder):
        if _is_folder(entry):
            inside.append(entry)
        elif os.path.splitext(entry.name)[1].lower() in types and _is_file(entry):
            listing.images.append(entry.name)
        else:
            listing.others.append(entry.name)
    yield listing
    for entry in inside:
        path = folder / entry.name
        if entry.is_symlink() and any(path.samefile(outer) for outer in (folder, *above)):
            raise DataError(f"{path} is a link to a folder that it is in: remove it")
        yield from _walk(path, (folder, *above))


def refuse_special_files(folder: Path) -> None:
    """Raise DataError if a folder has a FIFO, a socket or a device: ``datasets`` would read them, which may not end."""
    for entry in _visible(folder):
        if _is_folder(entry):
            if not entry.is_symlink():
                refuse_special_files(folder / entry.name)
        elif not _is_file(entry):
            raise DataError(f"{folder / entry.name} is not a regular file: remove it from the data")


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError:  # no permission: a class folder without images is refused
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a file, or a link to nothing, which is reported when it is read."""
    try:
        return entry.is_file() or not os.path.exists(entry)
    except OSError:
        return True


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if _is_folder(entry) and not entry.name.startswith(".")]


def _is_hub_layout(folder: Path) -> bool:
    return next(folder.rglob("*.parquet"), None) is not None


def _is_text(name: str) -> bool:
    """Return whether a name can be written: from the archives of older systems come names in other encodings."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more
