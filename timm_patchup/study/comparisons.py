"""The reference of a study against its other rows, on equal seeds: differences, wins and tests, as tables.

A study declares its ``comparisons`` before its runs. They are tested on its first metric, all at once, when every row
has its seeds: looking at p-values while seeds come in would find differences that are not there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..system.markdown import escape
from .collect import StudyRow
from .definition import HIGHER_IS_BETTER, Study
from .numbers import DIGITS, aligned, comma_separated, number
from .statistics import Difference, compare, holm

_COLUMNS = (
    *("benchmark", "metric", "value", "reference", "other", "pairs", "difference", "low", "high"),
    *("wins", "wins_low", "wins_high", "p", "p_holm"),
)


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
                    lower = reference.metric not in HIGHER_IS_BETTER
                    found.append(Comparison(reference, other, compare(own, its, lower_is_better=lower)))
    declared = [
        one for one in found if one.other.metric == study.metrics[0] and one.other.condition.label in study.comparisons
    ]
    benchmarks = {condition.benchmark for condition in study.conditions if condition.label == study.reference}
    complete = len(declared) == len(study.comparisons) * len(benchmarks)
    if not complete or any(one.difference.pairs < study.seeds for one in declared):
        return found
    corrected = dict(zip(map(id, declared), holm([one.difference.p for one in declared])))
    return [replace(one, corrected=corrected.get(id(one))) for one in found]


def _compared_in(row: StudyRow) -> tuple[str, str, str]:
    """Return what two rows must share to be compared: benchmark, metric and the value of an evaluation."""
    of_training = row.setting == row.condition.setting
    return row.condition.benchmark, row.metric, "" if of_training else row.setting


def comparison_section(study: Study, found: Sequence[Comparison]) -> list[str]:
    """Return the lines of the section in a study's page; none if it has no reference or no pair of seeds."""
    if not found:
        return []
    several = len({one.reference.condition.benchmark for one in found}) > 1
    tested = any(one.corrected is not None for one in found)
    head = [*(["benchmark"] if several else []), "metric", "against", "pairs", "difference", "wins"]
    body = [[*head, *(["p", "p, Holm"] if tested else [])]]
    for one in found:
        own, digits = one.difference, DIGITS[one.other.unit]
        low, high = own.wins_interval
        line = [
            *([escape(one.other.condition.benchmark)] if several else []),
            escape(f"{one.other.metric} {one.value}".strip()) + f", {one.other.unit}",
            escape(one.other.condition.label),
            str(own.pairs),
            number(own.mean, own.interval, digits, signed=True),
            f"{own.wins} [{100 * low:.0f}%, {100 * high:.0f}%]",
        ]
        line += [f"{own.p:.4f}", "-" if one.corrected is None else f"{one.corrected:.4f}"] if tested else []
        body.append(line)
    lines = ["", f"## {escape(study.reference or '')} against the others, seed by seed", "", *aligned(body), ""]
    lines += [
        "Difference: the reference's mean minus the other's, over pairs of runs with equal seeds, with its 95% "
        "interval (Student's t). Wins: pairs in which the reference is better, and the 95% interval of its chance to "
        "win (Clopper-Pearson)."
    ]
    if tested:
        lines[-1] += (
            f" p: exact two-sided sign-flip test of the paired differences. Holm: corrected for the "
            f"{len(study.comparisons)} comparisons of {study.metrics[0]} that the study declared before its runs; the "
            f"others describe, and decide nothing."
        )
    elif study.comparisons:
        lines[-1] += (
            f" The declared comparisons ({', '.join(map(escape, study.comparisons))}) are tested when each of them has "
            f"its {study.seeds} seeds."
        )
    else:
        lines[-1] += " The study declares no comparison: intervals describe, and decide nothing."
    return lines


def comparisons_csv(found: Sequence[Comparison]) -> str:
    """Return comparisons as CSV with all digits; a field without a number is empty."""
    lines = []
    for one in found:
        own, place = one.difference, one.other.condition
        compared = (place.benchmark, one.other.metric, one.value, one.reference.condition.label, place.label)
        low, high = own.interval or (None, None)
        lines.append((*compared, own.pairs, own.mean, low, high, own.wins, *own.wins_interval, own.p, one.corrected))
    return comma_separated(_COLUMNS, lines)
