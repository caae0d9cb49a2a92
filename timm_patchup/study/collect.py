"""Collect finished runs into rows: the values of all seeds, their mean and interval, the paper's number.

Only files are read here; nothing is run.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from ..errors import UserError, brief
from ..evaluation.suites import SUITES
from ..runs.folder import RunFolder, parse_summary
from ..system.checked import check_keys, read_json
from .definition import METRICS, Condition, Evaluation, Run, Study
from .options import StudyOptions, run_recipe
from .paper import PaperNumber, paper_number
from .seeds import SeedRow, SeedRows, current_commit, data_seed, key_of, recipe_digest
from .statistics import mean_interval

Cell = tuple[str, str]  # a metric and its setting


@dataclass(frozen=True)
class StudyRow:
    """One metric of one condition.

    Attributes:
        condition: benchmark, method and overrides.
        setting: that of the condition, or the name of a value of an evaluation.
        metric: one of ``METRICS``.
        by_seed: the metric of each finished seed.
        planned: number of seeds.
        paper: the paper's number, None if it has none.
    """

    condition: Condition
    setting: str
    metric: str
    by_seed: Mapping[int, float]
    planned: int
    paper: PaperNumber | None

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self.by_seed.values())

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
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the mean, None for fewer than two seeds."""
        return mean_interval(self.values)

    @property
    def half_width(self) -> float:
        """Half the width of the interval, for error bars; 0 if there is none."""
        return 0.0 if self.interval is None else (self.interval[1] - self.interval[0]) / 2

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper.mean

    @property
    def partial(self) -> bool:
        return len(self.values) < self.planned


def collect(study: Study, runs: Sequence[Run], options: StudyOptions) -> list[StudyRow]:
    """Return the rows of a study's tables, from the runs that are finished and intact; see ``damaged_runs``."""
    rows = []
    for condition in study.conditions:
        of_condition = [run for run in runs if run.condition is condition]
        found = {run.seed: measured(study, run, options) for run in of_condition}
        for cell in cells(study, condition):
            metric, setting = cell
            by_seed = {seed: values[cell] for seed, values in found.items() if cell in values}
            paper = paper_number(study, condition, setting, metric)
            rows.append(StudyRow(condition, setting, metric, by_seed, len(of_condition), paper))
    return rows


def cells(study: Study, condition: Condition) -> list[Cell]:
    """Return what the table shows for a condition: metrics of its training, then values of its evaluation."""
    trained = [(metric, condition.setting) for metric in study.metrics]
    return trained + [(part.metric, value) for part in study.evaluation for value in part.values]


def measured(study: Study, run: Run, options: StudyOptions) -> dict[Cell, float]:
    """Return all metrics of a run; none if it is not finished."""
    folder, stored = RunFolder(options.runs / run.name), _stored(study, run, options)
    if stored is not None:
        return {cell: stored.values[_column(cell, run)] for cell in cells(study, run.condition)}
    if folder.state() != "finished":
        return {}
    try:
        found = {(metric, run.condition.setting): value for metric, value in metrics_of(folder).items()}
    except UserError:  # one damaged run must not hide the others
        return {}
    for part in study.evaluation:
        values = _values(part, run, options) or {}
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
    if _stored(study, run, options) is not None:
        return True
    if RunFolder(options.runs / run.name).state() != "finished":
        return False
    return all(
        (options.report(run, part) / "report.html").is_file()  # the page is written last
        and _values(part, run, options) is not None
        for part in study.evaluation
    )


def seed_rows(
    study: Study, runs: Sequence[Run], options: StudyOptions, known: SeedRows, made: Mapping[str, float | None]
) -> SeedRows:
    """Return a row per finished run, next to those of other runs in ``known``, which has what the folders do not.

    Args:
        made: CPU minutes of the runs that were finished by the code of now, by name; None if unknown.
    """
    rows, commit = dict(known), current_commit()
    for run in runs:
        found = measured(study, run, options)
        if found and _stored(study, run, options) is None:
            recipe, before, place = run_recipe(run, options), known.get(key_of(run)), key_of(run)
            by_us = run.name in made
            rows[key_of(run)] = SeedRow(
                place=place[:3],
                seed=run.seed,
                data_seed=data_seed(recipe),
                recipe=recipe_digest(recipe),
                commit=commit if by_us else before.commit if before else "",
                cpu_minutes=made[run.name] if by_us else before.cpu_minutes if before else None,
                values={_column(cell, run): value for cell, value in found.items()},
            )
    return rows


def _stored(study: Study, run: Run, options: StudyOptions) -> SeedRow | None:
    """Return the row of a finished run whose folder may be gone; None if a value of the tables is not in it."""
    row = options.finished.get(key_of(run))
    has_all = row is not None and all(_column(cell, run) in row.values for cell in cells(study, run.condition))
    return row if has_all else None


def _column(cell: Cell, run: Run) -> str:
    metric, setting = cell
    return metric if setting in (metric, run.condition.setting) else f"{metric} {setting}"


def _values(part: Evaluation, run: Run, options: StudyOptions) -> dict[str, float | None] | None:
    """Return the values of a suite in the report of a run; None if it was measured in another way or is damaged."""
    path, found = options.report(run, part) / "results.json", None
    try:
        by_model = read_json(path, suites=dict)["suites"].get(part.suite, {})
        for name, entry in check_keys(by_model, {}, where=f"{path}: {part.suite}").items():
            check_keys(entry, {"values": dict, "settings": dict}, where=f"{path}: {part.suite} of {name}")
            values = entry["values"]
            check_keys(values, dict.fromkeys(values, (float, NoneType)), where=f"{path}: {part.suite}")
            if _is_current(part.suite, entry["settings"], options):
                found = values
    except UserError:
        return None
    return found


def _is_current(suite: str, settings: Mapping[str, Any], options: StudyOptions) -> bool:
    """Return whether an entry was measured as in this release and call."""
    known = SUITES.get(suite)
    return known is not None and (known.is_current is None or known.is_current(settings, options.of_suites))


def check_finished(study: Study, runs: Sequence[Run], options: StudyOptions) -> None:
    """Refuse to mix runs: those in the folder must have the recipes of this call.

    Raises:
        UserError: runs with another recipe, and the keys that differ.
    """
    problems, digests = [], dict[int, str]()
    for run in runs:
        row = _stored(study, run, options)
        if row is not None:
            own = digests.setdefault(id(run.condition), recipe_digest(run_recipe(run, options)))
            if row.recipe != own:
                problems.append(f"{run.name} was run with another recipe ({row.recipe}, not {own}): remove its row")
            continue
        folder = RunFolder(options.runs / run.name)
        if folder.state() not in ("finished", "unfinished"):
            continue
        try:
            mine, theirs = run_recipe(run, options), folder.recipe()
        except UserError as error:
            problems += [f"{run.name}: {problem}; remove the folder to run it again" for problem in error.problems]
            continue
        problems += [
            f"{run.name} was run with {name} {brief(other)}, got {brief(own)}: use the same settings, or another output"
            for name, (own, other) in mine.differences(theirs).items()
        ]
    if problems:
        shown = problems[:5]
        more = len(problems) - len(shown)
        raise UserError([*shown, *([f"and {more} more differences"] if more else [])])
