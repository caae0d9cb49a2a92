"""Files that are written whole or not at all, and their checksums.

Everything that a run, a report or a study leaves behind goes through here: an interrupted write leaves the old file.
Files reach the disk before they are renamed, and the new names before anything relies on them, so that this holds for a
power cut, too.
"""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError, one_line

PARTIAL = ".partial-"
# Also for folders in which files may be created, but which may not be listed.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; what is written there replaces ``path``, unless an error is raised."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    try:
        yield partial
        flush_to_disk(partial)
        os.replace(partial, path)
        flush_to_disk(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, so that a reader never sees a part of it; its folder is created if needed."""
    create_folder(path.parent)
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def create_folder(path: Path) -> None:
    """Create a folder and those above it unless they exist, and wait until their names are on the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        flush_to_disk(folder.parent)


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk; some file systems cannot do this for folders."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # Windows has no handles of folders
        return
    try:
        handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if not is_folder or error.errno not in _NO_FOLDER_SYNC:
            raise


def refuse_unusable_folder(path: Path, *, called: str = "output") -> None:
    """Raise UserError if a folder does not exist and cannot be created, as far as that can be known without trying."""
    try:
        existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    except OSError as error:
        raise UserError(f"{called} {one_line(str(path), 80)}: {error.strerror}: choose another one") from None
    if not existing.is_dir():
        raise UserError(f"{called} must be a folder, but {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{called} {path}: no permission to write to {existing}: choose another one")


def make_folder(path: Path, *, called: str = "output") -> None:
    """Create a folder unless it exists; raise UserError if that is not possible."""
    try:
        create_folder(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UserError(f"{called} {path} cannot be created: {error.strerror}: choose another one") from None


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file of any size."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
