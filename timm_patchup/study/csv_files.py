"""The rows and the comparisons of a study as CSV, with all digits; a field without a number is empty."""

from collections.abc import Sequence

from ..report.tables import comma_separated
from .collect import StudyRow
from .comparisons import Comparison

_RESULTS = (
    *("benchmark", "method", "setting", "metric", "unit", "seeds_done", "seeds_planned", "mean", "std", "low", "high"),
    *("paper_mean", "paper_std", "paper_table", "difference"),
)
_COMPARISONS = (
    *("benchmark", "metric", "value", "reference", "other", "pairs", "difference", "low", "high"),
    *("wins", "wins_low", "wins_high", "p", "p_holm"),
)


def results_csv(rows: Sequence[StudyRow]) -> str:
    """Return the rows of a study."""
    lines: list[tuple[object, ...]] = [_RESULTS]
    for row in rows:
        place = (row.condition.benchmark, row.condition.method, row.setting, row.metric.name, row.metric.unit)
        ours = (len(row.by_seed), row.planned, row.ours.mean, row.ours.std, *(row.ours.interval or (None, None)))
        paper = (None, None, None) if row.paper is None else (row.paper.mean, row.paper.std, row.paper.table)
        lines.append((*place, *ours, *paper, row.difference))
    return comma_separated(lines)


def comparisons_csv(found: Sequence[Comparison]) -> str:
    """Return the comparisons of a study."""
    lines: list[tuple[object, ...]] = [_COMPARISONS]
    for one in found:
        own, place = one.difference, one.other.condition
        compared = (place.benchmark, one.other.metric.name, one.value, one.reference.condition.label, place.label)
        low, high = own.interval or (None, None)
        lines.append((*compared, own.pairs, own.mean, low, high, own.wins, *own.wins_interval, own.p, one.corrected))
    return comma_separated(lines)
