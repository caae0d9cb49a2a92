"""The page of a study, ``results.md``: its table, its comparisons, and what is missing. It contains no path."""

from collections.abc import Sequence

from ..report.markdown import escape
from ..report.numbers import Metric, as_text
from ..report.tables import markdown_table
from .collect import StudyRow
from .comparisons import Comparison
from .definition import Study
from .paper import paper_tables, source_of

_PLACE = ("benchmark", "method", "setting")


def results_page(
    study: Study, rows: Sequence[StudyRow], found: Sequence[Comparison], *, command: str, failed: Sequence[str]
) -> str:
    """Return the page of a study.

    Args:
        study: the study.
        rows: its rows.
        found: its comparisons.
        command: the command that makes it.
        failed: names of the runs that failed.
    """
    # A run counts as done if it has a value in its last row.
    last = list({id(row.condition): row for row in rows}.values())
    done, planned = sum(len(row.by_seed) for row in last), sum(row.planned for row in last)
    parts = [f"# {escape(study.name)}: {escape(study.title)}", f"    {' '.join(command.split())}"]
    if study.note:
        parts.append(escape(study.note))
    if done < planned:
        parts.append(f"**Partial: {done} of {planned} runs are done.** Run the same command again to resume.")
    parts += [results_table(rows), "Ours: mean over seeds, with its 95% interval (Student's t)."]
    if study.paper:
        source, where = source_of(row.paper for row in rows), ", ".join(map(_address, study.paper))
        parts[-1] += f" Difference: ours - {source}.\n{source[0].upper()}{source[1:]}: {where}"
        parts[-1] += ", ± its standard deviation; `-` if it has no number."
    if found:
        title = f"## {escape(study.reference or '')} against the others, seed by seed"
        parts += [title, _comparisons_table(found), _about_comparisons(study, found)]
    if failed:
        parts.append("Failed runs, not in the table:")
        parts.append("\n".join(f"- {name}: see logs/{name}.log" for name in map(escape, failed)))
    return "\n\n".join(parts) + "\n"


def results_table(rows: Sequence[StudyRow]) -> str:
    """Return the table, with a column of settings only if there are any.

    With numbers of the paper every metric has its own line; without any, all metrics of a method are in one line.
    """
    body = _with_paper(rows) if any(row.paper for row in rows) else _side_by_side(rows)
    if not any(row.setting for row in rows):
        body = [cells[:2] + cells[3:] for cells in body]
    return markdown_table(body, aligned=True)


def _with_paper(rows: Sequence[StudyRow]) -> list[tuple[str, ...]]:
    source = source_of(row.paper for row in rows)
    lines: list[tuple[str, ...]] = [(*_PLACE, "metric", "seeds", "ours", source, "difference")]
    for row in rows:
        metric, digits = f"{row.metric.name}, {row.metric.unit}", row.metric.digits
        paper = "-" if row.paper is None else as_text(row.paper.mean, row.paper.std, digits)
        difference = "-" if row.difference is None else f"{row.difference:+.{digits}f}"
        lines.append((*_place(row), metric, _seeds(row), row.ours.with_interval(digits), paper, difference))
    return lines


def _side_by_side(rows: Sequence[StudyRow]) -> list[tuple[str, ...]]:
    metrics = list(dict.fromkeys(row.metric for row in rows))
    lines: list[tuple[str, ...]] = [(*_PLACE, "seeds", *(f"{metric.name}, {metric.unit}" for metric in metrics))]
    by_place: dict[tuple[str, ...], dict[Metric, StudyRow]] = {}
    for row in rows:
        by_place.setdefault(_place(row), {})[row.metric] = row
    for place, own in by_place.items():
        cells = [own[metric].ours.with_interval(metric.digits) if metric in own else "-" for metric in metrics]
        lines.append((*place, _seeds(next(iter(own.values()))), *cells))
    return lines


def _place(row: StudyRow) -> tuple[str, ...]:
    return row.condition.benchmark, row.condition.method, row.setting


def _seeds(row: StudyRow) -> str:
    return f"{len(row.by_seed)} of {row.planned}, partial" if row.partial else str(row.planned)


def _address(label: str) -> str:
    """Return the label of a published table, with its address if it is not the paper's."""
    address = paper_tables().get(label, {}).get("url")
    return label if address is None else f"{label} ({address})"


def _comparisons_table(found: Sequence[Comparison]) -> str:
    """Return the table, with a column of benchmarks only for several, and columns of tests only if there are any."""
    body: list[tuple[str, ...]] = [("benchmark", "metric", "against", "pairs", "difference", "wins", "p", "p, Holm")]
    for one in found:
        own, metric = one.difference, one.other.metric
        low, high = own.wins_interval
        cells = (
            one.other.condition.benchmark,
            f"{f'{metric.name} {one.value}'.strip()}, {metric.unit}",
            one.other.condition.label,
            str(own.pairs),
            as_text(own.mean, own.interval, metric.digits, signed=True),
            f"{own.wins} ({100 * low:.0f}% to {100 * high:.0f}%)",
            f"{own.p:.4f}",
            "-" if one.corrected is None else f"{one.corrected:.4f}",
        )
        body.append(cells)
    first = 0 if len({one.reference.condition.benchmark for one in found}) > 1 else 1
    last = None if any(one.corrected is not None for one in found) else -2
    return markdown_table([cells[first:last] for cells in body], aligned=True)


def _about_comparisons(study: Study, found: Sequence[Comparison]) -> str:
    text = (
        "Difference: the reference's mean minus the other's, over pairs of runs with equal seeds, with its 95% "
        "interval (Student's t). Wins: pairs in which the reference is better, and the 95% interval of its chance to "
        "win (Clopper-Pearson)."
    )
    if any(one.corrected is not None for one in found):
        return text + (
            f" p: exact two-sided sign-flip test of the paired differences. Holm: corrected for the "
            f"{len(study.comparisons)} comparisons of {study.metrics[0].name} that the study declared before its runs; "
            f"the others describe, and decide nothing."
        )
    if study.comparisons:
        return text + (
            f" The declared comparisons ({', '.join(map(escape, study.comparisons))}) are tested when each of them has "
            f"its {study.seeds} seeds."
        )
    return text + " The study declares no comparison: intervals describe, and decide nothing."
