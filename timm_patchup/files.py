"""Writing files whole or not at all; and names for folders that do not tell where they lie."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial-"


def anonymous_name(path: str | Path) -> str:
    """Return a name that tells a folder from others of the same name, and not where it lies: ``cifar10-c-1f3870be``."""
    resolved = Path(path).resolve()
    return f"{resolved.name}-{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give another name beside the path to write to; the file takes its place where that went well, else is removed."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
