"""The page and the CSV of a study, and its figure with error bars. None of them contains a path."""

from collections.abc import Sequence
from pathlib import Path

from ..system.files import replacing
from ..system.markdown import escape
from .collect import StudyRow
from .comparisons import comparison_section, comparisons
from .definition import Study
from .numbers import DIGITS, aligned, comma_separated, number
from .paper import PAPER, paper_tables

_PLACE = ("benchmark", "method", "setting")
_COLUMNS = (
    "benchmark",
    "method",
    "setting",
    "metric",
    "unit",
    "seeds_done",
    "seeds_planned",
    "mean",
    "std",
    "low",
    "high",
    "paper_mean",
    "paper_std",
    "paper_table",
    "difference",
)


def markdown(study: Study, rows: Sequence[StudyRow], *, command: str, failed: Sequence[str]) -> str:
    """Return the report of a study: the command, the table, and what is missing from it."""
    # A run counts as done if it has a value in its last row.
    last = list({id(row.condition): row for row in rows}.values())
    done, planned = sum(len(row.values) for row in last), sum(row.planned for row in last)
    lines = [f"# {escape(study.name)}: {escape(study.title)}", "", f"    {' '.join(command.split())}", ""]
    if study.note:
        lines += [escape(study.note), ""]
    if done < planned:
        lines += [f"**Partial: {done} of {planned} runs are done.** Run the same command again to resume.", ""]
    lines += table(rows)
    lines += ["", "Ours: mean over seeds, with its 95% interval (Student's t)."]
    if study.paper:
        source, where = _source(rows), ", ".join(map(_address, study.paper))
        lines[-1] += f" Difference: ours - {source}."
        lines += [f"{source[0].upper()}{source[1:]}: {where}, ± its standard deviation; `-` if it has no number."]
    lines += comparison_section(study, comparisons(study, rows))
    if failed:
        lines += [
            "",
            "Failed runs, not in the table:",
            "",
            *(f"- {name}: see logs/{name}.log" for name in map(escape, failed)),
        ]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[StudyRow]) -> list[str]:
    """Return the lines of the table, with aligned columns, and a column of settings only if there are any.

    With numbers of the paper every metric has its own line; without any, all metrics of a method are in one line.
    """
    body = _with_paper(rows) if any(row.paper for row in rows) else _side_by_side(rows)
    if not any(row.setting for row in rows):
        body = [cells[:2] + cells[3:] for cells in body]
    return aligned(body)


def _with_paper(rows: Sequence[StudyRow]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = [(*_PLACE, "metric", "seeds", "ours", _source(rows), "difference")]
    for row in rows:
        digits = DIGITS[row.unit]
        paper = "-" if row.paper is None else number(row.paper.mean, row.paper.std, digits)
        difference = "-" if row.difference is None else f"{row.difference:+.{digits}f}"
        lines.append((*_place(row), f"{row.metric}, {row.unit}", _seeds(row), _ours(row), paper, difference))
    return lines


def _side_by_side(rows: Sequence[StudyRow]) -> list[tuple[str, ...]]:
    metrics = {row.metric: row.unit for row in rows}
    lines: list[tuple[str, ...]] = [(*_PLACE, "seeds", *(f"{metric}, {unit}" for metric, unit in metrics.items()))]
    by_place: dict[tuple[str, ...], dict[str, StudyRow]] = {}
    for row in rows:
        by_place.setdefault(_place(row), {})[row.metric] = row
    for place, own in by_place.items():
        first = next(iter(own.values()))
        lines.append((*place, _seeds(first), *(_ours(own[metric]) if metric in own else "-" for metric in metrics)))
    return lines


def _source(rows: Sequence[StudyRow]) -> str:
    """Return whose numbers ours are compared with: the paper's, or those of another source."""
    return " and ".join(dict.fromkeys(row.paper.source for row in rows if row.paper is not None)) or PAPER


def _address(label: str) -> str:
    """Return the label of a published table, with its address if it is not the paper's."""
    address = paper_tables().get(label, {}).get("url")
    return label if address is None else f"{label} ({address})"


def _place(row: StudyRow) -> tuple[str, ...]:
    return escape(row.condition.benchmark), escape(row.condition.method), escape(row.setting)


def _seeds(row: StudyRow) -> str:
    return f"{len(row.values)} of {row.planned}, partial" if row.partial else str(row.planned)


def _ours(row: StudyRow) -> str:
    return number(row.mean, row.interval, DIGITS[row.unit])


def results_csv(rows: Sequence[StudyRow]) -> str:
    """Return the rows as CSV with all digits; a field without a number is empty."""
    lines = []
    for row in rows:
        place = (row.condition.benchmark, row.condition.method, row.setting, row.metric, row.unit)
        ours = (len(row.values), row.planned, row.mean, row.std, *(row.interval or (None, None)))
        paper = (None, None, None) if row.paper is None else (row.paper.mean, row.paper.std, row.paper.table)
        lines.append((*place, *ours, *paper, row.difference))
    return comma_separated(_COLUMNS, lines)


def plot(study: Study, rows: Sequence[StudyRow], path: Path) -> None:
    """Plot one metric, ours and the paper's with error bars, one panel per benchmark, to a PNG file."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.metric == study.plotted]
    benchmarks = list(dict.fromkeys(row.condition.benchmark for row in shown))
    panels = [[row for row in shown if row.condition.benchmark == benchmark] for benchmark in benchmarks]
    height = 1.2 + 0.3 * max(len(panel) for panel in panels)
    figure = Figure(figsize=(1.5 + 4.5 * len(panels), height), layout="constrained")
    for axes, panel, benchmark in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, benchmarks):
        for offset, label, colour in ((-0.12, "ours", "C0"), (0.12, _source(rows), "C1")):
            points = [(i + offset, *_point(row, label)) for i, row in enumerate(panel)]
            points = [point for point in points if point[1] is not None]
            if points:
                places, means, bars = zip(*points)
                axes.errorbar(means, places, xerr=bars, fmt="o", capsize=3, markersize=4, color=colour, label=label)
        if any(row.paper for row in panel):
            axes.legend(loc="best", fontsize=8)
        axes.set_yticks(range(len(panel)), [_tick(row) for row in panel], fontsize=8)
        axes.set_ylim(len(panel) - 0.5, -0.5)
        axes.set_xlabel(f"{study.plotted.replace('_', ' ')}, {panel[0].unit}")
        axes.set_title(benchmark, fontsize=9)
        axes.grid(alpha=0.3)
    figure.suptitle(study.title, fontsize=10)
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format="png")


def _point(row: StudyRow, whose: str) -> tuple[float | None, float]:
    """Return a mean and the length of its error bar: the interval of ours, the standard deviation of the paper's."""
    if whose == "ours":
        return row.mean, row.half_width
    return (None, 0.0) if row.paper is None else (row.paper.mean, row.paper.std or 0.0)


def _tick(row: StudyRow) -> str:
    name = f"{row.condition.method} {row.setting}".strip()
    return f"{name} ({len(row.values)}/{row.planned})" if row.partial else name
