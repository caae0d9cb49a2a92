"""Remember where a run found its data and pretrained weights on this machine, so that ``--resume`` needs no paths.

The paths are in a separate file inside ``checkpoints/``, which is never exported; no other file has a path.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import UserError
from ..system.checked import read_json
from ..system.files import write_whole
from .folder import LOCAL_PATHS, RunFolder


@dataclass(frozen=True)
class LocalPaths:
    """Absolute paths on this machine, None for what came from the Hub or the package."""

    data_dir: str | None = None
    pretrained_path: str | None = None

    @classmethod
    def of(cls, data_dir: str | Path | None, pretrained_path: str | Path | None = None) -> "LocalPaths":
        """Make the paths absolute."""
        return cls(*(None if path is None else str(Path(path).resolve()) for path in (data_dir, pretrained_path)))

    def remember(self, folder: RunFolder) -> None:
        """Write the paths next to the checkpoints of a run, or remove the file if there are none."""
        if self == LocalPaths():
            (folder.checkpoints / LOCAL_PATHS).unlink(missing_ok=True)
        else:
            write_whole(folder.checkpoints / LOCAL_PATHS, json.dumps(asdict(self), indent=1) + "\n")


def recall(folder: RunFolder) -> LocalPaths:
    """Return what a run remembers; nothing if it was started on another machine or its file cannot be read."""
    try:
        stored = read_json(folder.checkpoints / LOCAL_PATHS)
    except UserError:
        return LocalPaths()
    paths = {name: stored.get(name) for name in ("data_dir", "pretrained_path")}
    return LocalPaths(**{name: path for name, path in paths.items() if isinstance(path, str) and Path(path).exists()})
