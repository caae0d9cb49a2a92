"""The reference of a study against its other rows, on equal seeds: differences, wins and tests.

A study declares its ``comparisons`` before its runs. They are tested on its first metric, all at once, when every row
has its seeds: looking at p-values while seeds come in would find differences that are not there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..report.numbers import Metric
from ..report.statistics import Difference, compare, holm
from .collect import StudyRow
from .definition import Study


@dataclass(frozen=True)
class Comparison:
    """The reference of a study against another row of its benchmark, on the seeds that both have.

    Attributes:
        reference: a row of the reference.
        other: the same metric of another condition.
        difference: reference minus other.
        corrected: p of its test after Holm's correction for all comparisons of the study; None if the study did not
            declare it, or if a row of a declared comparison lacks some of its seeds.
    """

    reference: StudyRow
    other: StudyRow
    difference: Difference
    corrected: float | None = None

    @property
    def value(self) -> str:
        """The value of an evaluation, empty for a metric of the training."""
        return "" if self.other.setting == self.other.condition.setting else self.other.setting


def comparisons(study: Study, rows: Sequence[StudyRow]) -> list[Comparison]:
    """Return the reference against each other row with the same benchmark and metric."""
    found = []
    for reference in (row for row in rows if row.condition.label == study.reference):
        for other in rows:
            if other is not reference and _compared_in(other) == _compared_in(reference):
                seeds = [seed for seed in reference.by_seed if seed in other.by_seed]
                if seeds:
                    own, its = ([row.by_seed[seed] for seed in seeds] for row in (reference, other))
                    difference = compare(own, its, lower_is_better=not reference.metric.higher_is_better)
                    found.append(Comparison(reference, other, difference))
    declared = [
        one for one in found if one.other.metric == study.metrics[0] and one.other.condition.label in study.comparisons
    ]
    benchmarks = {condition.benchmark for condition in study.conditions if condition.label == study.reference}
    complete = len(declared) == len(study.comparisons) * len(benchmarks)
    if not complete or any(one.difference.pairs < study.seeds for one in declared):
        return found
    corrected = dict(zip(map(id, declared), holm([one.difference.p for one in declared])))
    return [replace(one, corrected=corrected.get(id(one))) for one in found]


def _compared_in(row: StudyRow) -> tuple[str, Metric, str]:
    """Return what two rows must share to be compared: benchmark, metric and the value of an evaluation."""
    of_training = row.setting == row.condition.setting
    return row.condition.benchmark, row.metric, "" if of_training else row.setting
