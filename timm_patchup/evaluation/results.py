"""``results.json``: every number with its settings, number of samples and seed, so that nothing is measured twice.

One file holds results on one dataset, by suite and model. A result is reused as long as weights, seed and settings are
the same.
"""

import json
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..system.files import replacing
from .context import Measured
from .models import EvalModel

FILE = "results.json"
Entry = dict[str, Any]


class Results:
    """The results in the folder of a report.

    Attributes:
        data: what identifies the test images.
        models: description per model.
        suites: entries per suite and model.
        extra: further top-level content that suites compute for the report.
    """

    def __init__(self, folder: Path, data: dict[str, Any], *, force: bool = False) -> None:
        """Read the stored results, if any.

        Args:
            folder: folder of the report.
            data: what identifies the test images.
            force: discard a file that is damaged or belongs to other data.

        Raises:
            UserError: the file is damaged or belongs to other data, or the folder is a file.
        """
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--output must be a folder, but {folder} is a file")
        self.folder, self.data = folder, data
        self.models: dict[str, dict[str, Any]] = {}
        self.suites: dict[str, dict[str, Entry]] = {}
        self.extra: dict[str, Any] = {}
        if not (folder / FILE).is_file():
            return
        other = "choose another --output, or start over with --force"
        try:
            stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
            models, suites, stored_data = stored["models"], stored["suites"], stored["data"]
        except (ValueError, KeyError, TypeError, OSError) as error:
            if force:
                return
            raise UserError(
                f"{folder / FILE} is damaged or was not written by this command ({error}): {other}"
            ) from error
        if stored_data != data:
            if force:
                return
            differing = [name for name in data if stored_data.get(name) != data[name]]
            was = ", ".join(f"{name} {stored_data.get(name)!r} instead of {data[name]!r}" for name in differing)
            raise UserError(f"{folder / FILE} has results with {was}: {other}")
        self.models, self.suites = models, suites

    def has(self, suite: str, model: EvalModel, *, seed: int, settings: dict[str, Any]) -> bool:
        """Whether there is a result of a suite for a model with the same weights, seed and settings."""
        entry = self.suites.get(suite, {}).get(model.name)
        if entry is None or not self._is_same_network(model):
            return False
        return (entry["seed"], entry["settings"]) == (seed, json.loads(json.dumps(settings)))

    def add(self, suite: str, model: EvalModel, measured: Measured, *, seed: int, settings: dict[str, Any]) -> None:
        """Store what a suite measured; results of another network or other weights under this name are removed."""
        if not self._is_same_network(model):
            for entries in self.suites.values():
                entries.pop(model.name, None)
        self.models[model.name] = model.describe()
        self.suites.setdefault(suite, {})[model.name] = {
            "weights": model.weights,
            "settings": json.loads(json.dumps(settings)),
            "seed": seed,
            "count": measured.count,
            "values": measured.values,
            "curves": measured.curves,
        }

    def write(self) -> None:
        content = {"data": self.data, "models": self.models, "suites": self.suites, **self.extra}
        write_bytes(self.folder / FILE, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())

    def _is_same_network(self, model: EvalModel) -> bool:
        return _network(self.models.get(model.name, {})) == _network(model.describe())


def _network(description: dict[str, Any]) -> str:
    """Return what defines a network: its weights alone do not."""
    arguments = description.get("recipe", {}).get("model_kwargs", {})
    return json.dumps([description.get("weights"), description.get("architecture"), arguments], sort_keys=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it, so that readers never see a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_bytes(content)
