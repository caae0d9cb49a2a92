"""Files that are written whole or not at all, and their checksums.

Everything that a run, a report or a study leaves behind goes through here: an interrupted write leaves the old file.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial-"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; what is written there replaces ``path``, unless an error is raised."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, so that a reader never sees a part of it; its folder is created if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file of any size."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
