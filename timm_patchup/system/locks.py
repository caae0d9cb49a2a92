"""Locks of folders: one process at a time works in a run, a report or a study.

A lock is the operating system's, so it ends with its process, however that ends. File systems without locks have none.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import UserError
from .files import remove

LOCK = ".lock"
_SECONDS = 1.0  # longer than ``is_locked`` holds a lock to try it
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def locked(path: Path, *, busy: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock with this path, in a folder that exists.

    Args:
        path: the file of the lock.
        busy: the error if another process holds it.
        waiting: wait for the other process instead, and call this first.

    Raises:
        UserError: another process holds the lock.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):  # a lock is a file: nobody holds it
        remove(path)
    lock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=_SECONDS)
        except Timeout:
            if waiting is None:
                raise UserError(busy) from None
            waiting()
            lock.acquire()
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Return whether another process holds a lock."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        return False
