"""The definition of a study: a grid of conditions, each a row of its tables, run with several seeds.

A file in ``recipes/studies`` lists groups; a group is benchmarks x methods x settings. Settings are either ``cases``,
named overrides of a recipe, or a ``grid``, lists of values per key, all combinations of which are run.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ..errors import UserError, brief, nearest, unknown
from ..evaluation.suites import SUITES
from ..recipe.compose import recipes_dir
from ..recipe.schema import MIX_PREFIX
from ..report.numbers import Metric
from ..report.statistics import pairs_needed
from ..system.checked import Kinds, check_keys, read_yaml
from .metrics import RUN_METRICS

_KEY_TYPES: dict[str, Kinds] = {
    **dict.fromkeys(("title", "shows", "note", "measure", "reference"), str),
    **dict.fromkeys(("metrics", "paper", "evaluation", "groups", "comparisons"), list),
    **dict.fromkeys(("seeds", "first_seed"), int),
    **dict.fromkeys(("paper_ratio", "overrides"), dict),
}
_PLAIN_KEYS = ("title", "shows", "note", "seeds", "first_seed", "reference")
_LISTS_OF_NAMES = {"metrics", "paper", "benchmarks", "methods", "comparisons"}
_GROUP_KEYS = {"benchmarks", "methods", "cases", "grid", "seeds"}
_EVALUATION_KEYS = {"suite", "metric", "values"}


@dataclass(frozen=True)
class Condition:
    """One row of a study: a recipe and its overrides.

    Attributes:
        benchmark: a name in ``recipes/benchmarks``.
        method: a name in ``recipes/methods``.
        setting: name of the overrides, as in the paper's numbers; may be empty.
        varied: keys that the setting changes.
        overrides: all keys that differ from the recipe: those, and the study's.
        seeds: its number of seeds if its group sets one, else None for the study's.
    """

    benchmark: str
    method: str
    setting: str
    varied: Mapping[str, Any]
    overrides: Mapping[str, Any]
    seeds: int | None = None

    @property
    def label(self) -> str:
        """Its name among the rows of one benchmark: the method, and the setting if there is one."""
        return f"{self.method} {self.setting}".strip()

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
    """A suite on which every trained run is evaluated, and the values of it that the tables show.

    Attributes:
        suite: its name.
        metric: one of the suite's metrics.
        values: names of its values.
        lines: what the values are, if the figure has a line per method over them, as the paper's has; else empty. The
            metric's, unless the study sets it.
        limit: number of test images, None for all.
    """

    suite: str
    metric: Metric
    values: tuple[str, ...]
    lines: str = ""
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study, as defined by its file.

    Attributes:
        name: name of the file.
        title: one line for the head of the tables.
        shows: which tables and figures of the paper the study makes again; empty if none.
        note: what a reader of the tables must know; may be empty.
        seeds: default number of seeds, and the number that the comparisons were declared with.
        first_seed: the first of them; the others follow.
        reference: label of the condition that the others are compared with, in each benchmark; None for none.
        comparisons: labels of the conditions whose difference from the reference is tested on the first metric.
        metrics: metrics of the training in the tables; the first one is plotted unless there is an evaluation.
        paper: labels of the paper's tables to compare with; the first one that has a number is used.
        paper_ratio: metric and method, if our ratio is compared with the paper's metric relative to that method.
        evaluation: suites on which each trained run is evaluated; the first one is plotted.
        measure: what a run is, a key of ``RUN_METRICS``.
        conditions: the rows.
    """

    name: str
    title: str
    shows: str = ""
    note: str = ""
    seeds: int = 5
    first_seed: int = 0
    reference: str | None = None
    comparisons: tuple[str, ...]
    metrics: tuple[Metric, ...]
    paper: tuple[str, ...]
    paper_ratio: tuple[str, str] | None
    evaluation: tuple[Evaluation, ...]
    measure: str
    conditions: tuple[Condition, ...]

    @property
    def plotted(self) -> Metric:
        """The metric of the figure."""
        return self.evaluation[0].metric if self.evaluation else self.metrics[0]

    def runs(self, seeds: int | None = None) -> list[Run]:
        """Return all runs, seed by seed, so that an unfinished study has results in every row."""
        count = max(self.seeds_of(condition, seeds) for condition in self.conditions)
        return [
            Run(condition, self.first_seed + number)
            for number in range(count)
            for condition in self.conditions
            if number < self.seeds_of(condition, seeds)
        ]

    def seeds_of(self, condition: Condition, seeds: int | None = None) -> int:
        """Return the number of seeds of a condition: its group's, but at most those given, or else the study's."""
        if condition.seeds is not None:
            return min(condition.seeds, seeds or condition.seeds)
        return seeds or self.seeds


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
    elif name not in list_studies():
        hint = nearest(name, list_studies()) or f"; the studies are {', '.join(list_studies())}"
        raise UserError(f"no study {brief(name)}{hint}")
    return make_study(path.stem, check_keys(read_yaml(path), {}, where=name))


def make_study(name: str, values: Mapping[str, Any]) -> Study:
    """Make a study from the keys of its file; raise UserError with everything that is wrong."""
    _require_types(name, values)
    groups = values.get("groups") or []
    metrics, measure = values.get("metrics") or ["test_error"], values.get("measure") or "training"
    of_run = {metric.name: metric for metric in RUN_METRICS[measure]}
    problems = [
        f"{name}: unknown key {brief(key)}{nearest(key, _KEY_TYPES)}" for key in sorted(set(values) - set(_KEY_TYPES))
    ]
    problems += [
        f"{name}: {metric} is not a metric of a {measure}, which has {', '.join(of_run)}{nearest(metric, of_run)}; "
        f"values of a suite belong to evaluation"
        for metric in metrics
        if metric not in of_run
    ]
    for group in groups:
        others = sorted(set(group) - _GROUP_KEYS)
        problems += [f"{name}: unknown key {brief(key)} in a group{nearest(key, _GROUP_KEYS)}" for key in others]
        problems += [f"{name}: a group needs {key}" for key in ("benchmarks", "methods") if not group.get(key)]
    evaluation = []
    for part in values.get("evaluation") or []:
        try:
            evaluation.append(_make_evaluation(part))
        except UserError as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
    if not groups or not values.get("title"):
        problems.append(f"{name}: a study needs a title and groups")
    if problems:
        raise UserError(problems)
    conditions = [condition for group in groups for condition in _expand(group, values.get("overrides") or {})]
    ratio = values.get("paper_ratio")
    study = Study(
        name=name,
        **{key: values[key] for key in _PLAIN_KEYS if values.get(key) is not None},
        comparisons=tuple(values.get("comparisons") or []),
        metrics=tuple(of_run[metric] for metric in metrics),
        paper=tuple(values.get("paper") or []),
        paper_ratio=(ratio["metric"], ratio["method"]) if ratio else None,
        evaluation=tuple(evaluation),
        measure=measure,
        conditions=tuple(conditions),
    )
    if evaluation and any(condition.setting for condition in conditions):
        raise UserError(f"{name}: a study with an evaluation cannot have cases or a grid, its rows are the values")
    names = [run.name for run in study.runs(1)]
    twice = sorted({run for run in names if names.count(run) > 1})
    if twice:
        raise UserError([f"{name}: {run} is defined twice" for run in twice])
    _require_comparable(study)
    return study


def _make_evaluation(part: Mapping[str, Any]) -> Evaluation:
    """Make an evaluation from its keys; raise UserError if a key, its suite, its metric or a value does not exist."""
    if set(part) - {"lines", "limit"} != _EVALUATION_KEYS or not isinstance(part["values"], list):
        raise UserError(f"an evaluation needs a suite, a metric and a list of values, got {part}")
    if part["suite"] not in SUITES:
        raise unknown("suite", part["suite"], SUITES)
    suite, values = SUITES[part["suite"]], tuple(map(str, part["values"]))
    metrics = {metric.name: metric for metric in suite.metrics}
    metric, named = metrics.get(part["metric"]), f"suite {suite.name}"
    problems = [
        f"{named} has no value {value!r}{nearest(value, suite.values)}"
        for value in values
        if suite.values and value not in suite.values
    ]
    if metric is None:
        problems.append(f"{named} has no metric {part['metric']!r}, only {', '.join(metrics) or 'numbers for reports'}")
    if problems or metric is None:
        raise UserError(problems)
    lines = metric.lines if part.get("lines") is None else part["lines"]
    return Evaluation(suite.name, metric, values, lines, part.get("limit"))


def _require_comparable(study: Study) -> None:
    """Raise UserError if a study compares conditions that it does not have, or cannot decide with its seeds."""
    labels = [condition.label for condition in study.conditions]
    named = [name for name in (study.reference, *study.comparisons) if name is not None]
    problems = [
        f"{study.name}: no row is called {brief(name)}{nearest(name, labels)}" for name in named if name not in labels
    ]
    if study.comparisons and study.reference is None:
        problems.append(f"{study.name}: comparisons need a reference, the row that the others are compared with")
    if study.reference in study.comparisons:
        problems.append(f"{study.name}: {study.reference} cannot be compared with itself")
    needed = pairs_needed(len(study.comparisons))
    few = [c for c in study.conditions if c.label in named and study.seeds_of(c) < needed]
    if study.comparisons and few:
        problems.append(
            f"{study.name}: {len(study.comparisons)} comparisons need {needed} seeds to be decided, {few[0].label} has "
            f"{study.seeds_of(few[0])}: leave out comparisons to show intervals only"
        )
    if problems:
        raise UserError(problems)


def _require_types(name: str, values: Mapping[str, Any]) -> None:
    """Raise UserError at the first value of another type than its key has; unknown keys are reported elsewhere."""

    def require(content: Any, kinds: Mapping[str, Kinds], where: str, **minimums: int) -> None:
        given = check_keys(content, {}, where=where)
        check_keys(given, {key: kind for key, kind in kinds.items() if given.get(key) is not None}, where=where)
        for key in _LISTS_OF_NAMES & set(given):
            if not all(isinstance(one, str) and one for one in given[key] or []):
                raise UserError(f"{where}: {key} must be a list of names, got {brief(given[key])}")
        for key, low in minimums.items():
            if given.get(key) is not None and given[key] < low:
                raise UserError(f"{where}: {key} must be at least {low}, got {given[key]}")

    require(values, _KEY_TYPES, name, seeds=1, first_seed=0)
    measure = values.get("measure") or "training"
    if measure not in RUN_METRICS:
        raise UserError(f"{name}: measure must be one of {', '.join(RUN_METRICS)}, got {brief(measure)}")
    if values.get("metrics") == []:
        known = ", ".join(metric.name for metric in RUN_METRICS[measure])
        raise UserError(f"{name}: metrics is empty: give at least one of {known}")
    for group in values.get("groups") or []:
        kinds = {"benchmarks": list, "methods": list, "cases": dict, "grid": dict, "seeds": int}
        require(group, kinds, f"{name}: a group", seeds=1)
        for case, overrides in (group.get("cases") or {}).items():
            require({} if overrides is None else overrides, {}, f"{name}: case {case}")
        require(group.get("grid") or {}, dict.fromkeys(group.get("grid") or {}, list), f"{name}: grid")
    for part in values.get("evaluation") or []:
        require(part, {"suite": str, "metric": str, "lines": str, "limit": int}, f"{name}: evaluation", limit=1)
    if values.get("paper_ratio"):
        check_keys(values["paper_ratio"], {"metric": str, "method": str}, where=f"{name}: paper_ratio")


def _expand(group: Mapping[str, Any], shared: Mapping[str, Any]) -> list[Condition]:
    """Return the conditions of a group; ``shared`` are keys that differ from the recipe in all runs of the study."""
    settings = _settings(group)
    return [
        Condition(benchmark, method, setting, own, {**shared, **own}, group.get("seeds"))
        for benchmark in group["benchmarks"]
        for method in group["methods"]
        for setting, own in settings.items()
    ]


def _settings(group: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return overrides by the name of their setting."""
    if group.get("cases"):
        return {str(name): dict(overrides or {}) for name, overrides in group["cases"].items()}
    grid = group.get("grid") or {}
    points = [dict(zip(grid, values)) for values in product(*grid.values())]
    return {", ".join(f"{key.removeprefix(MIX_PREFIX)}={value}" for key, value in p.items()): p for p in points}
