"""Collect finished runs into rows: the values of all seeds, their mean and interval, the paper's number.

Only files are read here; nothing is run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, brief
from ..evaluation.results import read_results
from ..evaluation.suites import SUITES
from ..report.numbers import Metric, SeedValues
from ..runs.folder import RunFolder
from .definition import Condition, Evaluation, Run, Study
from .metrics import metrics_of
from .options import StudyOptions, run_recipe
from .paper import PaperNumber, paper_number
from .seeds import SeedRow, SeedRows, current_commit, data_seed, key_of, recipe_digest

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class StudyRow:
    """One metric of one condition.

    Attributes:
        condition: benchmark, method and overrides.
        setting: the setting of the condition, or the name of a value of an evaluation.
        metric: what it is.
        by_seed: the metric of each finished seed.
        planned: number of seeds.
        paper: the paper's number, None if it has none.
    """

    condition: Condition
    setting: str
    metric: Metric
    by_seed: Mapping[int, float]
    planned: int
    paper: PaperNumber | None

    @property
    def ours(self) -> SeedValues:
        return SeedValues(tuple(self.by_seed.values()))

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        mean = self.ours.mean
        return None if mean is None or self.paper is None else mean - self.paper.mean

    @property
    def partial(self) -> bool:
        return len(self.by_seed) < self.planned


def collect(study: Study, runs: Sequence[Run], options: StudyOptions) -> list[StudyRow]:
    """Return the rows of a study's tables, from the runs that are finished and intact; see ``damaged_runs``."""
    rows = []
    for condition in study.conditions:
        of_condition = [run for run in runs if run.condition is condition]
        found = {run.seed: measured(study, run, options) for run in of_condition}
        for metric, setting, name in cells(study, condition):
            by_seed = {seed: values[name] for seed, values in found.items() if name in values}
            paper = paper_number(study, condition, setting, metric.name)
            rows.append(StudyRow(condition, setting, metric, by_seed, len(of_condition), paper))
    return rows


def cells(study: Study, condition: Condition) -> list[tuple[Metric, str, str]]:
    """Return what the table shows for a condition: metrics of its training, then values of its evaluation.

    Each is a metric, its setting, and its column in a file of seeds.
    """
    shown = [(metric, condition.setting) for metric in study.metrics]
    shown += [(part.metric, value) for part in study.evaluation for value in part.values]
    return [(metric, setting, column(metric, setting, condition)) for metric, setting in shown]


def measured(study: Study, run: Run, options: StudyOptions) -> Mapping[str, float]:
    """Return all metrics of a run by their column in a file of seeds; none if it is not finished."""
    folder, stored = RunFolder(options.runs / run.name), _stored(study, run, options)
    if stored is not None:
        return stored.values
    if folder.state() != "finished":
        return {}
    try:
        found = metrics_of(folder)
    except UserError:  # one damaged run must not hide the others
        return {}
    for part, values in _evaluated(study, run, options):
        for name in part.values:
            if (value := (values or {}).get(name)) is not None:
                found[column(part.metric, name, run.condition)] = value
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
    pages = [options.report(run, options.images_of(part)) / "report.html" for part in study.evaluation]
    reported = all(page.is_file() for page in pages)  # they are written last
    return reported and all(values is not None for _, values in _evaluated(study, run, options))


def seed_rows(
    study: Study, runs: Sequence[Run], options: StudyOptions, known: SeedRows, made: Mapping[str, float | None]
) -> SeedRows:
    """Return a row per finished run, next to the rows of other runs in ``known``, which has what the folders do not.

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
                values=found,
            )
    return rows


def _stored(study: Study, run: Run, options: StudyOptions) -> SeedRow | None:
    """Return the row of a finished run whose folder may be gone; None if a value of the tables is not in it."""
    row = options.finished.get(key_of(run))
    has_all = row is not None and all(name in row.values for *_, name in cells(study, run.condition))
    return row if has_all else None


def column(metric: Metric, setting: str, condition: Condition) -> str:
    """Return the column of a metric in a file of seeds."""
    return metric.name if setting in (metric.name, condition.setting) else f"{metric.name} {setting}"


def _evaluated(study: Study, run: Run, options: StudyOptions) -> list[tuple[Evaluation, Values | None]]:
    """Return the values of each evaluation of a run, None if there are none."""
    limits = [options.images_of(part) for part in study.evaluation]
    suites = {limit: _suites(options.report(run, limit), options) for limit in set(limits)}
    return [(part, suites[limit].get(part.suite)) for part, limit in zip(study.evaluation, limits)]


def _suites(report: Path, options: StudyOptions) -> dict[str, Values]:
    """Return the values per suite in a report; none of what was measured in another way or is damaged."""
    try:
        suites = read_results(report / "results.json")["suites"]
    except UserError:
        return {}
    return {
        suite: entry["values"]
        for suite, by_model in suites.items()
        for entry in by_model.values()
        if _is_current(suite, entry["settings"], options)
    }


def _is_current(suite: str, settings: Mapping[str, Any], options: StudyOptions) -> bool:
    """Return whether an entry was measured as in this release and call."""
    known = SUITES.get(suite)
    return known is not None and (known.is_current is None or known.is_current(settings, options.of_suites))


def refuse_other_runs(study: Study, runs: Sequence[Run], options: StudyOptions) -> None:
    """Refuse to mix runs: those in the folder must have the recipes of this call.

    Raises:
        UserError: runs with another recipe, and the keys that differ.
    """
    problems = []
    for run in runs:
        row = _stored(study, run, options)
        if row is not None:
            if row.recipe != (own := recipe_digest(run_recipe(run, options))):
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
