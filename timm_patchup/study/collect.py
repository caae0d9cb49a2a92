"""Collect finished runs into rows: mean and standard deviation over seeds, the paper's number, the difference.

Only files are read here; nothing is run.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from ..errors import UserError
from ..evaluation.suites import SUITES
from ..runs.folder import RunFolder, parse_summary
from ..system.checked import check_keys, read_json
from .definition import METRICS, Condition, Run, Study
from .options import StudyOptions, run_recipe
from .paper import PaperNumber, paper_number

Cell = tuple[str, str]  # a metric and its setting


@dataclass(frozen=True)
class StudyRow:
    """One metric of one condition.

    Attributes:
        condition: benchmark, method and overrides.
        setting: that of the condition, or the name of a value of an evaluation.
        metric: one of ``METRICS``.
        values: the metric of each finished seed.
        planned: number of seeds.
        paper: the paper's number, None if it has none.
    """

    condition: Condition
    setting: str
    metric: str
    values: tuple[float, ...]
    planned: int
    paper: PaperNumber | None

    @property
    def unit(self) -> str:
        return METRICS[self.metric]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation over seeds, None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper.mean

    @property
    def partial(self) -> bool:
        return len(self.values) < self.planned


def collect(study: Study, seeds: int, options: StudyOptions) -> list[StudyRow]:
    """Return the rows of a study's tables, from the runs that are finished and intact; see ``damaged_runs``."""
    rows = []
    for condition in study.conditions:
        by_seed = [measured(study, Run(condition, seed), options) for seed in range(seeds)]
        for cell in cells(study, condition):
            metric, setting = cell
            values = tuple(found[cell] for found in by_seed if cell in found)
            paper = paper_number(study, condition, setting, metric)
            rows.append(StudyRow(condition, setting, metric, values, seeds, paper))
    return rows


def cells(study: Study, condition: Condition) -> list[Cell]:
    """Return what the table shows for a condition: metrics of its training, then values of its evaluation."""
    trained = [(metric, condition.setting) for metric in study.metrics]
    return trained + [(part.metric, value) for part in study.evaluation for value in part.values]


def measured(study: Study, run: Run, options: StudyOptions) -> dict[Cell, float]:
    """Return all metrics of a run; none if it is not finished."""
    folder = RunFolder(options.runs / run.name)
    if folder.state() != "finished":
        return {}
    try:
        found = {(metric, run.condition.setting): value for metric, value in metrics_of(folder).items()}
    except UserError:  # one damaged run must not hide the others
        return {}
    suites = _suites(run, options)
    for part in study.evaluation:
        values = suites.get(part.suite, {})
        for name in part.values:
            value = values.get(name)
            if value is not None:
                found[(part.metric, name)] = value
    return found


def metrics_of(folder: RunFolder) -> dict[str, float]:
    """Return the metrics of a finished run: test metrics and validation error of the chosen epoch.

    Raises:
        UserError: a file of the run is damaged.
    """
    results = folder.results()
    if "time_ratio" in results:
        return {"time_ratio": results["time_ratio"]}
    test = results["test"]
    found = {"test_error": test["error"], "test_nll": test["loss"], "top5_error": 100.0 - test["top5"]}
    if "median" in results:
        found["median_error"] = results["median"]["error"]
    if results["chosen_on"] == "validation":
        errors = {row["epoch"]: row["val_error"] for row in parse_summary(folder.summary())}
        error = errors.get(results["best_epoch"])
        if error is None:
            raise UserError(f"{folder.path}/summary.csv has no validation of epoch {results['best_epoch']}")
        found["val_error"] = error
    return found


def damaged_runs(runs: Sequence[Run], options: StudyOptions) -> list[str]:
    """Return a line per finished run whose files cannot be read; it is not in the tables."""
    problems = []
    for run in runs:
        folder = RunFolder(options.runs / run.name)
        if folder.state() == "finished":
            try:
                metrics_of(folder)
            except UserError as error:
                problems += [
                    f"{run.name} is left out: {problem}; remove its folder to run it again"
                    for problem in error.problems
                ]
    return problems


def is_done(study: Study, run: Run, options: StudyOptions) -> bool:
    """Return whether a run is trained, and evaluated on all suites of the study."""
    if RunFolder(options.runs / run.name).state() != "finished":
        return False
    report = options.report(run)
    reported = (report / "report.html").is_file()  # the page is written last
    return not study.evaluation or (
        reported and {part.suite for part in study.evaluation} <= set(_suites(run, options))
    )


def _suites(run: Run, options: StudyOptions) -> dict[str, dict[str, float | None]]:
    """Return the values per suite in the report of a run; none of what was measured in another way or is damaged."""
    path, found = options.report(run) / "results.json", dict[str, dict[str, float | None]]()
    try:
        for suite, by_model in read_json(path, suites=dict)["suites"].items():
            for name, entry in check_keys(by_model, {}, where=f"{path}: {suite}").items():
                check_keys(entry, {"values": dict, "settings": dict}, where=f"{path}: {suite} of {name}")
                values = entry["values"]
                check_keys(values, dict.fromkeys(values, (float, NoneType)), where=f"{path}: {suite}")
                if _is_current(suite, entry["settings"], options):
                    found[suite] = values
    except UserError:
        return {}
    return found


def _is_current(suite: str, settings: Mapping[str, Any], options: StudyOptions) -> bool:
    """Return whether an entry was measured as in this release and call."""
    known = SUITES.get(suite)
    return known is not None and (known.is_current is None or known.is_current(settings, options.of_suites))


def check_finished(runs: Sequence[Run], options: StudyOptions) -> None:
    """Refuse to mix runs: those in the folder must have the recipes of this call.

    Raises:
        UserError: runs with another recipe, and the keys that differ.
    """
    problems = []
    for run in runs:
        folder = RunFolder(options.runs / run.name)
        if folder.state() not in ("finished", "unfinished"):
            continue
        try:
            mine, theirs = run_recipe(run, options), folder.recipe()
        except UserError as error:
            problems += [f"{run.name}: {problem}; remove the folder to run it again" for problem in error.problems]
            continue
        problems += [
            f"{run.name} was run with {name} {other!r}, got {own!r}: use the same settings, or another output"
            for name, (own, other) in mine.differences(theirs).items()
        ]
    if problems:
        shown = problems[:5]
        more = len(problems) - len(shown)
        raise UserError([*shown, *([f"and {more} more differences"] if more else [])])
