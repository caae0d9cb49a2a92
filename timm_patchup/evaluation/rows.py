"""From the results of single models to the rows of a report: seeds of one recipe share a row."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..recipe.schema import KEYS_FREE_TO_CHANGE_ON_RESUME
from ..report.numbers import SeedValues, Series
from .results import Entry, Results


@dataclass(frozen=True)
class ResultRow(Series):
    """One model, or several seeds of one recipe, with their entries in results.json by name."""

    entries: Mapping[str, Entry]

    @classmethod
    def of(cls, label: str, entries: Mapping[str, Entry]) -> "ResultRow":
        """Return a row of these models.

        A value that any of them lacks is missing: the median distance of an attack is missing if half of the samples
        resist, and the mean over the remaining seeds would be too small.
        """
        measured = [entry["values"] for entry in entries.values()]
        found = {name: [values.get(name) for values in measured] for values in measured for name in values}
        values = {name: SeedValues(() if None in own else tuple(own)) for name, own in found.items()}
        return cls(label, values, entries)

    @property
    def curves(self) -> dict[str, list[list[float]]]:
        """The curves by name, one per model that has it."""
        measured = [entry["curves"] for entry in self.entries.values()]
        return {name: [own[name] for own in measured if name in own] for curves in measured for name in curves}


def make_rows(results: Results, suite: str) -> list[ResultRow]:
    """Return the rows of a suite: models whose recipes differ in the seed only and that were measured in the same way.

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
    rows: dict[str, ResultRow] = {}
    for members in groups.values():
        model = results.models[members[0]]
        labels = [members[0]]
        if len(members) > 1:
            short = f"{model['method']} ({len(members)} seeds)"
            labels = [short, f"{model['architecture']} {short}", f"{members[0]} ({len(members)} seeds)"]
        label = next(label for label in labels if label not in rows)
        rows[label] = ResultRow.of(label, {name: entries[name] for name in members})
    return list(rows.values())


def _how_measured(entry: Entry) -> str:
    """Return settings and seed as text: numbers measured in different ways are not averaged."""
    return json.dumps([entry["settings"], entry["seed"]], sort_keys=True)


def _without_seed(recipe: dict[str, Any]) -> str:
    leave = {"seed", *KEYS_FREE_TO_CHANGE_ON_RESUME}
    return json.dumps({key: value for key, value in recipe.items() if key not in leave}, sort_keys=True)
