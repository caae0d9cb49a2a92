"""``results.json``: every number with its settings, the number of samples and the seed; what is there is not redone.

One file is one data set. Results of a model stand under suite and name, and are taken over as long as weights, seed and
settings are the same.
"""

import json
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..system.files import replacing
from .bench import Measured
from .subject import Subject

FILE = "results.json"
Entry = dict[str, Any]


class Results:
    """The results in a report's folder."""

    def __init__(self, folder: Path, data: dict[str, Any], *, force: bool = False) -> None:
        """Open what is there.

        Raises:
            UserError: the file is damaged or of other data, and not to be replaced; or there can be no folder.
        """
        if folder.exists() and not folder.is_dir():
            raise UserError([f"--output {folder} is a file, a folder is needed"])
        self.folder, self.data = folder, data
        self.models: dict[str, dict[str, Any]] = {}
        self.suites: dict[str, dict[str, Entry]] = {}
        self.mce: dict[str, Any] = {}
        if not (folder / FILE).is_file():
            return
        other = "choose another --output, or --force to begin anew"
        try:
            stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
            models, suites, stored_data = stored["models"], stored["suites"], stored["data"]
        except (ValueError, KeyError, TypeError, OSError) as error:
            if force:
                return
            raise UserError([f"{folder / FILE} is not a file of this command ({error}): {other}"]) from error
        if stored_data != data:
            if force:
                return
            differing = [name for name in data if stored_data.get(name) != data[name]]
            was = ", ".join(f"{name} {stored_data.get(name)!r} and not {data[name]!r}" for name in differing)
            raise UserError([f"{folder / FILE} holds results with {was}: {other}"])
        self.models, self.suites = models, suites

    def has(self, suite: str, subject: Subject, *, seed: int, settings: dict[str, Any]) -> bool:
        entry = self.suites.get(suite, {}).get(subject.name)
        if entry is None or _network(self.models.get(subject.name, {})) != _network(subject.describe()):
            return False
        return (entry["seed"], entry["settings"]) == (seed, json.loads(json.dumps(settings)))

    def add(self, suite: str, subject: Subject, measured: Measured, *, seed: int, settings: dict[str, Any]) -> None:
        """Keep what a suite found for a model; results of another network or other weights under its name go."""
        if _network(self.models.get(subject.name, {})) != _network(subject.describe()):
            for entries in self.suites.values():
                entries.pop(subject.name, None)
        self.models[subject.name] = subject.describe()
        self.suites.setdefault(suite, {})[subject.name] = {
            "weights": subject.weights,
            "settings": json.loads(json.dumps(settings)),
            "seed": seed,
            "count": measured.count,
            "values": measured.values,
            "curves": measured.curves,
        }

    def write(self) -> None:
        content = {"data": self.data, "models": self.models, "suites": self.suites}
        if self.mce:
            content["mce"] = self.mce
        write_bytes(self.folder / FILE, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def _network(description: dict[str, Any]) -> str:
    """Return what makes a network what it is: not all of it is in its weights."""
    arguments = description.get("recipe", {}).get("model_kwargs", {})
    return json.dumps([description.get("weights"), description.get("architecture"), arguments], sort_keys=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_bytes(content)
