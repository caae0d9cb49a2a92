"""From finished runs to rows: mean and standard deviation over the seeds, the paper's number, the difference."""

import csv
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..runs.folder import RunFolder
from .commands import Options, run_recipe
from .definition import METRICS, Condition, Run, Study
from .paper import PaperNumber, paper_number

Place = tuple[str, str]  # a metric and the setting it is of


@dataclass(frozen=True)
class Row:
    """One metric of one condition.

    Args:
        condition: benchmark, method and overrides.
        setting: that of the condition, or which value of an evaluation it is.
        metric: a name of ``METRICS``.
        values: the metric of each seed that is done.
        planned: number of seeds.
        paper: the paper's number, None where it has none.
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
        """The standard deviation of the seeds as a sample, None of fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper.mean

    @property
    def partial(self) -> bool:
        return len(self.values) < self.planned


def collect(study: Study, seeds: int, options: Options) -> list[Row]:
    """Return the rows of a study's tables, from whatever runs are finished."""
    rows = []
    for condition in study.conditions:
        by_seed = [measured(study, Run(condition, seed), options) for seed in range(seeds)]
        for place in places(study, condition):
            metric, setting = place
            values = tuple(found[place] for found in by_seed if place in found)
            paper = paper_number(study, condition, setting, metric)
            rows.append(Row(condition, setting, metric, values, seeds, paper))
    return rows


def places(study: Study, condition: Condition) -> list[Place]:
    """Return what the table shows of a condition: metrics of its training, then values of its evaluation."""
    trained = [(metric, condition.setting) for metric in study.metrics]
    return trained + [(part.metric, value) for part in study.evaluation for value in part.values]


def measured(study: Study, run: Run, options: Options) -> dict[Place, float]:
    """Return all that is known of a run; nothing where it is not finished."""
    folder = RunFolder(options.runs / run.name)
    if folder.state() != "finished":
        return {}
    found = {(metric, run.condition.setting): value for metric, value in metrics_of(folder).items()}
    suites = _suites(options.report(run))
    for part in study.evaluation:
        values = suites.get(part.suite, {})
        for name in part.values:
            value = values.get(name)
            if value is not None:
                found[(part.metric, name)] = value
    return found


def metrics_of(folder: RunFolder) -> dict[str, float]:
    """Return the metrics of a finished run: the test of its chosen epoch, and the validation error of that epoch."""
    results = folder.results()
    if "time_ratio" in results:
        return {"time_ratio": results["time_ratio"]}
    test = results["test"]
    found = {"test_error": test["error"], "test_nll": test["loss"], "top5_error": 100.0 - test["top5"]}
    if results["chosen_on"] == "validation":
        with (folder.path / "summary.csv").open(newline="", encoding="utf-8") as file:
            errors = {int(row["epoch"]): row["val_error"] for row in csv.DictReader(file)}
        found["val_error"] = float(errors[results["best_epoch"]])
    return found


def is_done(study: Study, run: Run, options: Options) -> bool:
    """Whether nothing of a run is left to do: it is trained, and what it is evaluated on is measured and reported."""
    if RunFolder(options.runs / run.name).state() != "finished":
        return False
    report = options.report(run)
    reported = (report / "report.html").is_file()  # the page is written last
    return not study.evaluation or (reported and {part.suite for part in study.evaluation} <= set(_suites(report)))


def _suites(report: Path) -> dict[str, dict[str, float | None]]:
    """Return the values of each suite in the report of one model; none where there is no whole report."""
    try:
        suites = json.loads((report / "results.json").read_text(encoding="utf-8"))["suites"]
    except (OSError, ValueError, KeyError):
        return {}
    return {suite: entry["values"] for suite, by_model in suites.items() for entry in by_model.values()}


def check_finished(runs: Sequence[Run], options: Options) -> None:
    """Refuse to mix runs: what lies in the folder must be what this call would run.

    Raises:
        UserError: a run of another recipe, with the keys that differ.
    """
    problems = []
    for run in runs:
        folder = RunFolder(options.runs / run.name)
        if folder.state() not in ("finished", "unfinished"):
            continue
        mine, theirs = run_recipe(run, options), folder.recipe()
        flat, other = mine.to_dict(), theirs.to_dict()
        problems += [
            f"{run.name} was run with {name} {other.get(name)!r}, not {flat.get(name)!r}: give the flags it was run "
            f"with, or another --output"
            for name in mine.differences(theirs)
        ]
    if problems:
        shown = problems[:5]
        more = len(problems) - len(shown)
        raise UserError([*shown, *([f"and {more} more of the kind"] if more else [])])
