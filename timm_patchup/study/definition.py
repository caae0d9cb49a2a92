"""The definition of a study: a grid of conditions, each a row of its tables, run with several seeds.

A file in ``recipes/studies`` lists groups; a group is benchmarks x methods x settings. Settings are either ``cases``,
named overrides of a recipe, or a ``grid``, lists of values per key, of which all combinations are run.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml

from ..errors import UserError, nearest, one_line
from ..recipe.compose import recipes_dir
from ..recipe.schema import MIX_PREFIX

Measure = Literal["training", "timing"]
# Metrics of trainings and of evaluation suites, with their units.
METRICS = {
    "test_error": "%",
    "val_error": "%",
    "top5_error": "%",
    "test_nll": "nats",
    "time_ratio": "x",
    "affine_error": "%",
    "robust_accuracy": "%",
    "fgsm_accuracy": "%",
    "corruption_error": "%",
    "corruption_sum": "sum of %",
    "activation": "magnitude",
    "rho": "radians",
}
_KEYS = {"title", "shows", "note", "seeds", "metrics", "paper", "paper_ratio", "evaluation", "measure", "groups"}
_GROUP_KEYS = {"benchmarks", "methods", "cases", "grid"}
_EVALUATION_KEYS = {"suite", "metric", "values"}


@dataclass(frozen=True)
class Condition:
    """One row of a study: a recipe and its overrides.

    Attributes:
        benchmark: a name in ``recipes/benchmarks``.
        method: a name in ``recipes/methods``.
        setting: name of the overrides, as in the paper's numbers; may be empty.
        overrides: keys that differ from the recipe.
    """

    benchmark: str
    method: str
    setting: str
    overrides: Mapping[str, Any]

    @property
    def recipe(self) -> str:
        return f"{self.benchmark}_{self.method}"


@dataclass(frozen=True)
class Run:
    """One condition with one seed."""

    condition: Condition
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder, unique within a study."""
        setting = re.sub(r"[^A-Za-z0-9.]+", "_", self.condition.setting).strip("_")
        return "-".join(part for part in (self.condition.recipe, setting, f"seed{self.seed}") if part)


@dataclass(frozen=True)
class Evaluation:
    """A suite on which every trained run is evaluated, and the values of it that the tables show."""

    suite: str
    metric: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """A study, as defined by its file.

    Attributes:
        name: name of the file.
        title: one line for the head of the tables.
        shows: which tables and figures of the paper the study makes again; empty if none.
        note: what a reader of the tables must know; may be empty.
        seeds: default number of seeds.
        metrics: metrics of the training in the tables; the first one is plotted unless there is an evaluation.
        paper: labels of the paper's tables to compare with; the first one that has a number is used.
        paper_ratio: metric and method, if our ratio is compared with the paper's metric relative to that method.
        evaluation: suites on which each trained run is evaluated; the first one is plotted.
        measure: whether a run is a training or a measurement of time.
        conditions: the rows.
    """

    name: str
    title: str
    shows: str
    note: str
    seeds: int
    metrics: tuple[str, ...]
    paper: tuple[str, ...]
    paper_ratio: tuple[str, str] | None
    evaluation: tuple[Evaluation, ...]
    measure: Measure
    conditions: tuple[Condition, ...]

    @property
    def plotted(self) -> str:
        """The metric of the figure."""
        return self.evaluation[0].metric if self.evaluation else self.metrics[0]

    def runs(self, seeds: int | None = None) -> list[Run]:
        """Return all runs, seed by seed, so that an unfinished study has results in every row."""
        count = self.seeds if seeds is None else seeds
        return [Run(condition, seed) for seed in range(count) for condition in self.conditions]


def list_studies() -> list[str]:
    """Return the names of all studies."""
    return sorted(path.stem for path in (recipes_dir() / "studies").glob("*.yaml"))


def load_study(name: str) -> Study:
    """Load a study by its name in ``list_studies()``, or from a YAML file.

    Raises:
        UserError: there is no such study, or everything that is wrong with its file.

    Example:
        >>> len(load_study("loss_terms").runs())
        35
    """
    path = recipes_dir() / "studies" / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"no such study file: {name}")
    elif name not in list_studies():
        hint = nearest(name, list_studies()) or f"; the studies are {', '.join(list_studies())}"
        raise UserError(f"no study {name!r}{hint}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{name} is not YAML: {one_line(error)}") from None
    if not isinstance(values, dict):
        raise UserError(f"{name} must be a mapping of keys to values, got {type(values).__name__}")
    return make_study(path.stem, values)


def make_study(name: str, values: Mapping[str, Any]) -> Study:
    """Make a study from the keys of its file; raise UserError with everything that is wrong."""
    groups, parts = values.get("groups") or [], values.get("evaluation") or []
    metrics = values.get("metrics", ["test_error"])
    shown = [*metrics, *(part["metric"] for part in parts if "metric" in part)]
    problems = [f"{name}: unknown key {key!r}{nearest(key, _KEYS)}" for key in sorted(set(values) - _KEYS)]
    problems += [f"{name}: unknown metric {m!r}{nearest(m, METRICS)}" for m in shown if m not in METRICS]
    for group in groups:
        unknown = sorted(set(group) - _GROUP_KEYS)
        problems += [f"{name}: unknown key {key!r} in a group{nearest(key, _GROUP_KEYS)}" for key in unknown]
        problems += [f"{name}: a group needs {key}" for key in ("benchmarks", "methods") if not group.get(key)]
    for part in parts:
        if set(part) != _EVALUATION_KEYS or not isinstance(part["values"], list):
            problems.append(f"{name}: an evaluation needs a suite, a metric and a list of values, got {part}")
    if not groups or not values.get("title"):
        problems.append(f"{name}: a study needs a title and groups")
    if problems:
        raise UserError(problems)
    evaluation = [Evaluation(part["suite"], part["metric"], tuple(map(str, part["values"]))) for part in parts]
    conditions = [condition for group in groups for condition in _expand(group)]
    ratio = values.get("paper_ratio")
    study = Study(
        name=name,
        title=values["title"],
        shows=values.get("shows", ""),
        note=values.get("note", ""),
        seeds=values.get("seeds", 5),
        metrics=tuple(metrics),
        paper=tuple(values.get("paper", [])),
        paper_ratio=(ratio["metric"], ratio["method"]) if ratio else None,
        evaluation=tuple(evaluation),
        measure=values.get("measure", "training"),
        conditions=tuple(conditions),
    )
    if evaluation and any(condition.setting for condition in conditions):
        raise UserError(f"{name}: a study with an evaluation cannot have cases or a grid, its rows are the values")
    names = [run.name for run in study.runs(1)]
    twice = sorted({run for run in names if names.count(run) > 1})
    if twice:
        raise UserError([f"{name}: {run} is defined twice" for run in twice])
    return study


def _expand(group: Mapping[str, Any]) -> list[Condition]:
    settings = _settings(group)
    return [
        Condition(benchmark, method, setting, overrides)
        for benchmark in group["benchmarks"]
        for method in group["methods"]
        for setting, overrides in settings.items()
    ]


def _settings(group: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return overrides by the name of their setting."""
    if "cases" in group:
        return {str(name): dict(overrides or {}) for name, overrides in group["cases"].items()}
    grid = group.get("grid", {})
    points = [dict(zip(grid, values)) for values in product(*grid.values())]
    return {", ".join(f"{key.removeprefix(MIX_PREFIX)}={value}" for key, value in p.items()): p for p in points}
