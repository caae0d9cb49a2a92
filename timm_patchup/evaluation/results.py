"""``results.json``: every number with its settings, number of samples and seed, so that nothing is measured twice.

One file holds results on one dataset, by suite and model. A result is reused as long as weights, seed and settings are
the same.
"""

import json
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Any

from ..errors import Failed, UserError, brief
from ..system.checked import check_keys, read_json
from ..system.files import refuse_folders, refuse_unusable_folder, write_whole
from .context import Measurement
from .models import EvalModel

FILE = "results.json"
Entry = dict[str, Any]


class Results:
    """The results in the folder of a report.

    Attributes:
        data: what identifies the test images.
        models: description per model.
        suites: entries per suite and model.
        extra: more top-level content that suites compute for the report.
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
        refuse_unusable_folder(folder)
        refuse_folders(folder / name for name in (FILE, "report.md", "report.html"))
        self.folder, self.data = folder, data
        self.models: dict[str, dict[str, Any]] = {}
        self.suites: dict[str, dict[str, Entry]] = {}
        self.extra: dict[str, Any] = {}
        if not (folder / FILE).is_file():
            return
        other = "choose another output, or start over with force (--force)"
        try:
            stored = read_results(folder / FILE)
        except UserError as error:
            if force:
                return
            raise UserError(f"{error}: {other}") from None
        models, suites, stored_data = stored["models"], stored["suites"], stored["data"]
        if stored_data != data:
            if force:
                return
            differing = [name for name in {**stored_data, **data} if stored_data.get(name) != data.get(name)]
            was = ", ".join(
                f"{name} {brief(stored_data.get(name))} instead of {brief(data.get(name))}" for name in differing
            )
            raise UserError(f"{folder / FILE} has results with {was}: {other}")
        self.models, self.suites = models, suites

    def has(self, suite: str, model: EvalModel, *, seed: int, settings: dict[str, Any]) -> bool:
        """Whether there is a result of a suite for a model with the same weights, seed and settings."""
        entry = self.suites.get(suite, {}).get(model.name)
        if entry is None or not self._is_same_network(model):
            return False
        return (entry["seed"], entry["settings"]) == (seed, json.loads(json.dumps(settings)))

    def add(self, suite: str, model: EvalModel, measured: Measurement, *, seed: int, settings: dict[str, Any]) -> None:
        """Store what a suite measured; results of another network or other weights under this name are removed.

        Raises:
            Failed: a value is not finite.
        """
        for name, value in measured.values.items():
            if value is not None and not isfinite(value):
                raise Failed(f"{suite} of {model.name}: {name} is {value}: are the outputs of the model finite?")
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
        write_whole(self.folder / FILE, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def _is_same_network(self, model: EvalModel) -> bool:
        return _network(self.models.get(model.name, {})) == _network(model.describe())


def read_results(path: Path) -> dict[str, Any]:
    """Return the content of a results.json of an evaluation.

    Raises:
        UserError: it is damaged or something else.
    """
    stored = read_json(path, data=dict, models=dict, suites=dict)
    for name, model in stored["models"].items():
        check_keys(model, {"weights": str, "architecture": str}, where=f"{path}: {name}")
        if "recipe" in model:
            check_keys(model["recipe"], {"model_kwargs": dict}, where=f"{path}: recipe of {name}")
    for suite, entries in stored["suites"].items():
        for name, entry in check_keys(entries, {}, where=f"{path}: {suite}").items():
            where = f"{path}: {suite} of {name}"
            check_keys(
                entry, {"settings": dict, "seed": int, "count": int, "values": dict, "curves": dict}, where=where
            )
            check_keys(entry["values"], dict.fromkeys(entry["values"], (float, NoneType)), where=where)
            check_keys(entry["curves"], dict.fromkeys(entry["curves"], list), where=where)
    return stored


def _network(description: dict[str, Any]) -> str:
    """Return what defines a network: its weights alone do not."""
    arguments = description.get("recipe", {}).get("model_kwargs", {})
    return json.dumps([description.get("weights"), description.get("architecture"), arguments], sort_keys=True)
