"""From results of single models to rows of a report: seeds of one method are one row, with mean and deviation."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from ..recipe.schema import KEYS_FREE_TO_CHANGE_ON_RESUME
from .results import Entry, Results


@dataclass(frozen=True)
class Number:
    """A mean over so many models, and their sample standard deviation where there are several."""

    mean: float
    std: float | None = None

    def show(self, digits: int) -> str:
        text = f"{round(self.mean, digits) + 0.0:.{digits}f}"  # no -0.00
        return text if self.std is None else f"{text} ± {self.std:.{digits}f}"


@dataclass(frozen=True)
class Row:
    """One model, or several seeds of one method."""

    label: str
    members: tuple[str, ...]


def make_rows(results: Results, suite: str) -> list[Row]:
    """Return the rows of a suite: models whose recipes differ in their seeds only and that were measured alike.

    Two runs of one seed are no sample of anything and stay apart.
    """
    entries = results.suites.get(suite, {})
    groups: dict[str, list[str]] = {}
    for name, model in results.models.items():
        if name not in entries:
            continue
        recipe = model.get("recipe")
        key = name if recipe is None else _without_seed(recipe) + how_measured(entries[name])
        seeds = [results.models[other].get("seed") for other in groups.get(key, [])]
        groups.setdefault(name if model.get("seed") in seeds else key, []).append(name)
    rows: list[Row] = []
    for members in groups.values():
        model = results.models[members[0]]
        labels = [members[0]]
        if len(members) > 1:
            short = f"{model['method']} ({len(members)} seeds)"
            labels = [short, f"{model['architecture']} {short}", f"{members[0]} ({len(members)} seeds)"]
        taken = {row.label for row in rows}
        rows.append(Row(next(label for label in labels if label not in taken), tuple(members)))
    return rows


def how_measured(entry: Entry) -> str:
    """Return settings and seed as one text: numbers that differ in it are no sample of one thing."""
    return json.dumps([entry["settings"], entry["seed"]], sort_keys=True)


def values_of(row: Row, entries: dict[str, Entry]) -> dict[str, Number | None]:
    """Return the values of a row in its suite.

    None where a member has no number: a median distance is missing where half of the samples resist, and the mean of
    the seeds that do have one would be too small.
    """
    measured = [entries[name]["values"] for name in row.members]
    keys = list(dict.fromkeys(key for values in measured for key in values))
    found = {key: [values.get(key) for values in measured] for key in keys}
    return {
        key: None if None in values else number([v for v in values if v is not None]) for key, values in found.items()
    }


def curves_of(row: Row, entries: dict[str, Entry]) -> dict[str, list[list[float]]]:
    """Return the curves of a row, those of each member."""
    measured = [entries[name]["curves"] for name in row.members]
    keys = list(dict.fromkeys(key for curves in measured for key in curves))
    return {key: [curves[key] for curves in measured if key in curves] for key in keys}


def number(values: Sequence[float]) -> Number | None:
    """Return mean and sample standard deviation."""
    if not values:
        return None
    return Number(mean(values), stdev(values) if len(values) > 1 else None)


def _without_seed(recipe: dict[str, Any]) -> str:
    leave = {"seed", *KEYS_FREE_TO_CHANGE_ON_RESUME}
    return json.dumps({key: value for key, value in recipe.items() if key not in leave}, sort_keys=True)
