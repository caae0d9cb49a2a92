"""Files that are written whole or not at all, files that are safe to read, and their checksums.

Everything that a run, a report or a study leaves behind goes through here: an interrupted write leaves the old file.
Files reach the disk before they are renamed, and the new names before anything relies on them, so that this holds for a
power cut, too. A folder may come from elsewhere: no write follows a link in it.
"""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ..errors import Failed, UserError, one_line

try:
    import fcntl
except ImportError:  # Windows, which keeps an open file from being removed
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial-"
# Also for folders in which files may be created, but which may not be listed.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM)


_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | getattr(os, "O_BINARY", 0)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file in the same folder; what is written to it replaces ``path``, unless an error is raised.

    Raises:
        Failed: ``path`` is a folder.
    """
    refuse_folders([path], error=Failed)
    partial = path.with_name(f"{PARTIAL}{path.name}")
    with _create(partial) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.name == "nt":  # no open file can be renamed there
                file.close()
            os.replace(partial, path)
            flush_to_disk(path.parent)
        except BaseException:
            if file.closed or _is_at(partial, file.fileno()):
                partial.unlink(missing_ok=True)
            raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, so that a reader never sees a part of it; its folder is created if needed."""
    create_folder(path.parent)
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _create(path: Path) -> BinaryIO:
    """Create and lock a file. Whatever else has this name is removed, but not while another process writes it."""
    while True:
        try:
            file = os.fdopen(os.open(path, _NEW_FILE, 0o666), "wb")
        except FileExistsError:
            _remove_unless_locked(path)
            continue
        _lock(file.fileno())
        if _is_at(path, file.fileno()):
            return file
        file.close()  # it was not locked yet, and taken for a leftover


def _remove_unless_locked(path: Path) -> None:
    """Remove what has a name; if it is a file that another process writes, wait for the process first."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            remove(path)
            return
        handle = os.open(path, os.O_RDWR | _NO_FOLLOW)
    except FileNotFoundError:
        return
    try:
        _lock(handle)
        if _is_at(path, handle):
            remove(path)
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    """Wait for the lock of an open file, which ends with its last handle; some file systems have none."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)


def _is_at(path: Path, handle: int) -> bool:
    """Return whether a path is still the name of an open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def open_to_append(path: Path) -> BinaryIO:
    """Open a file to append to, which is created if it does not exist; a link is removed and not followed."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        remove(path)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NO_FOLLOW, 0o666), "ab")


def remove(path: Path) -> None:
    """Remove a file, a folder with its content, or a link but not what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_file(path: Path) -> bytes:
    """Return the content of a file; raise OSError if it is a FIFO, a socket or a device: reading one may not end."""
    with open_file(path) as file:
        return file.read()


def open_file(path: Path) -> BinaryIO:
    """Open a file to read it; raise OSError if it is a FIFO, a socket or a device."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # for a folder, open has an error
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path.open("rb")


def refuse_folders(paths: Iterable[Path], *, error: type[UserError] = UserError) -> None:
    """Raise an error if a folder has the name of a file that is to be written."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            raise error(f"{path} is a folder, but a file of this name has to be written: move the folder away")


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
    """Return the SHA-256 of a file of any size; raise OSError if it cannot be read."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
