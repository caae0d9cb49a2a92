"""From the results of single models to the rows of a report: seeds of one recipe share a row, with mean and std."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from ..recipe.schema import KEYS_FREE_TO_CHANGE_ON_RESUME
from .results import Entry, Results


@dataclass(frozen=True)
class Number:
    """A mean over several models and its sample standard deviation, which is None for a single model."""

    mean: float
    std: float | None = None

    def show(self, digits: int) -> str:
        text = f"{round(self.mean, digits) + 0.0:.{digits}f}"  # no -0.00
        return text if self.std is None else f"{text} ± {self.std:.{digits}f}"


@dataclass(frozen=True)
class ResultRow:
    """One model, or several seeds of one recipe."""

    label: str
    members: tuple[str, ...]


def make_rows(results: Results, suite: str) -> list[ResultRow]:
    """Return the rows of a suite: models whose recipes differ in the seed only and that were measured alike.

    Two runs with the same seed are not independent and get separate rows.
    """
    entries = results.suites.get(suite, {})
    groups: dict[str, list[str]] = {}
    for name, model in results.models.items():
        if name not in entries:
            continue
        recipe = model.get("recipe")
        key = name if recipe is None else _without_seed(recipe) + _how_measured(entries[name])
        seeds = [results.models[other].get("seed") for other in groups.get(key, [])]
        groups.setdefault(name if model.get("seed") in seeds else key, []).append(name)
    rows: list[ResultRow] = []
    for members in groups.values():
        model = results.models[members[0]]
        labels = [members[0]]
        if len(members) > 1:
            short = f"{model['method']} ({len(members)} seeds)"
            labels = [short, f"{model['architecture']} {short}", f"{members[0]} ({len(members)} seeds)"]
        taken = {row.label for row in rows}
        rows.append(ResultRow(next(label for label in labels if label not in taken), tuple(members)))
    return rows


def values_of(row: ResultRow, entries: Mapping[str, Entry]) -> dict[str, Number | None]:
    """Return the values of a row.

    A value is None if any member lacks it: the median distance of an attack is missing if half of the samples resist,
    and the mean over the remaining seeds would be too small.
    """
    measured = [entries[name]["values"] for name in row.members]
    keys = list(dict.fromkeys(key for values in measured for key in values))
    found = {key: [values.get(key) for values in measured] for key in keys}
    return {
        key: None if None in values else number([v for v in values if v is not None]) for key, values in found.items()
    }


def curves_of(row: ResultRow, entries: Mapping[str, Entry]) -> dict[str, list[list[float]]]:
    """Return the curves of a row by name, one per member."""
    measured = [entries[name]["curves"] for name in row.members]
    keys = list(dict.fromkeys(key for curves in measured for key in curves))
    return {key: [curves[key] for curves in measured if key in curves] for key in keys}


def number(values: Sequence[float]) -> Number | None:
    """Return mean and sample standard deviation, None without values."""
    if not values:
        return None
    return Number(mean(values), stdev(values) if len(values) > 1 else None)


def _how_measured(entry: Entry) -> str:
    """Return settings and seed as text: numbers measured in different ways are not averaged."""
    return json.dumps([entry["settings"], entry["seed"]], sort_keys=True)


def _without_seed(recipe: dict[str, Any]) -> str:
    leave = {"seed", *KEYS_FREE_TO_CHANGE_ON_RESUME}
    return json.dumps({key: value for key, value in recipe.items() if key not in leave}, sort_keys=True)
