"""The figures of a study: points beside the paper's, or lines where the paper has them.

A study that varies one or two settings has curves over the first, one per value of the second (the paper's figure 12).
An evaluation whose values are on a line has one per method over them (figures 4, 5, 13 and 15). Error bars and bands
are the 95% interval of a mean over seeds.
"""

import re
from collections.abc import Sequence
from numbers import Real
from typing import Any

from ..recipe.schema import MIX_PREFIX
from ..report.charts import lines
from ..report.figures import Axes, Figure, as_png, panels
from ..report.numbers import Metric, Series
from .collect import StudyRow
from .definition import Evaluation, Study
from .paper import source_of

RESULTS = "results.png"


def study_figures(study: Study, rows: Sequence[StudyRow]) -> dict[str, bytes]:
    """Return the figures of a study as PNG, by the name of their file.

    ``results.png`` has the metrics of the training or the first evaluation; each further evaluation with lines has a
    separate file.
    """
    found = {}
    for number, part in enumerate(study.evaluation):
        if part.lines:
            found[f"{part.metric.name}.png" if number else RESULTS] = as_png(plot_lines, study, part, rows)
    if RESULTS not in found:
        found = {RESULTS: as_png(plot_curves if is_grid(study) else plot_points, study, rows), **found}
    return found


def is_grid(study: Study) -> bool:
    """Whether every condition varies one or two numbers, so that its results are curves; not beside printed numbers."""
    return not study.paper and all(
        1 <= len(condition.varied) <= 2 and all(isinstance(value, Real) for value in condition.varied.values())
        for condition in study.conditions
    )


def plot_points(study: Study, rows: Sequence[StudyRow]) -> Figure:
    """Plot one metric, ours and the paper's with error bars, one panel per benchmark."""
    shown = [row for row in rows if row.metric == study.plotted]
    benchmarks = list(dict.fromkeys(row.condition.benchmark for row in shown))
    by_benchmark = [[row for row in shown if row.condition.benchmark == benchmark] for benchmark in benchmarks]
    count, height = len(benchmarks), 1.2 + 0.3 * max(map(len, by_benchmark))
    figure, all_axes = panels(count, columns=count, width=4.5, height=height, margin=1.5)
    for axes, own, benchmark in zip(all_axes, by_benchmark, benchmarks):
        ours = [(i - 0.12, row.ours.mean, row.ours.half_width) for i, row in enumerate(own)]
        papers = [(i + 0.12, row.paper.mean, row.paper.std or 0.0) for i, row in enumerate(own) if row.paper]
        sources = (("ours", "C0", ours), (source_of(row.paper for row in rows), "C1", papers))
        for label, color, points in sources:
            known = [point for point in points if point[1] is not None]
            if known:
                places, means, bars = zip(*known)
                axes.errorbar(means, places, xerr=bars, fmt="o", capsize=3, markersize=4, color=color, label=label)
        if papers:
            axes.legend(loc="best", fontsize=8)
        axes.set_yticks(range(len(own)), [_tick(row) for row in own], fontsize=8)
        axes.set_ylim(len(own) - 0.5, -0.5)
        axes.set_xlabel(f"{study.plotted.name.replace('_', ' ')}, {study.plotted.unit}")
        _finish(axes, benchmark)
    return _titled(figure, study)


def plot_curves(study: Study, rows: Sequence[StudyRow]) -> Figure:
    """Plot the first metric over the first setting, one panel per benchmark and method."""
    by_panel: dict[tuple[str, str, str], dict[str, list[tuple[float, float, float]]]] = {}
    for condition in study.conditions:
        x, *_ = condition.varied
        by_panel.setdefault((condition.benchmark, condition.method, x), {})
    for row in rows:
        if row.metric == study.plotted and row.ours.mean is not None:
            (x, value), *second = row.condition.varied.items()
            line = f"{second[0][0].removeprefix(MIX_PREFIX)} {second[0][1]}" if second else ""
            points = by_panel[row.condition.benchmark, row.condition.method, x].setdefault(line, [])
            points.append((float(value), row.ours.mean, row.ours.half_width))
    figure, all_axes = panels(len(by_panel), columns=len(by_panel), width=4.2)
    for axes, ((benchmark, method, x), own) in zip(all_axes, by_panel.items()):
        for line, points in own.items():
            values, means, bars = zip(*sorted(points))
            axes.plot(values, means, marker="o", markersize=4, label=line)
            low, high = ([mean + sign * bar for mean, bar in zip(means, bars)] for sign in (-1, 1))
            axes.fill_between(values, low, high, alpha=0.2)
        if any(own):
            axes.legend(fontsize=8)
        axes.set_xlabel(x.removeprefix(MIX_PREFIX))
        axes.set_ylabel(_label(study.plotted))
        _finish(axes, f"{benchmark}, {method}")
    return _titled(figure, study)


def plot_lines(study: Study, part: Evaluation, rows: Sequence[StudyRow]) -> Figure:
    """Plot an evaluation, one panel per benchmark and one line per method over its values."""
    benchmarks, methods = (
        list(dict.fromkeys(getattr(condition, name) for condition in study.conditions))
        for name in ("benchmark", "method")
    )
    figure, all_axes = panels(len(benchmarks))
    are_numbers = all(re.fullmatch(r"[0-9.]+", value) for value in part.values)
    places = {value: float(value) if are_numbers else place for place, value in enumerate(part.values)}
    plotted: dict[str, Any] = {}  # by method, in any panel: an unfinished study has gaps
    for axes, benchmark in zip(all_axes, benchmarks):
        own = [row for row in rows if row.metric == part.metric and row.condition.benchmark == benchmark]
        series = [
            Series(method, {row.setting: row.ours for row in own if row.condition.method == method})
            for method in methods
        ]
        plotted |= lines(axes, series, places, spread=lambda values: values.half_width)
        names = [value.replace("_", " ") for value in places]
        axes.set_xticks(list(places.values()), names, rotation=0 if are_numbers else 90, fontsize=7)
        axes.set_xlabel(part.lines)
        axes.set_ylabel(_label(part.metric))
        _finish(axes, benchmark)
    if plotted:
        place = {"loc": "outside lower center", "ncols": len(plotted)}
        figure.legend(list(plotted.values()), list(plotted), **place, fontsize=8)
    return _titled(figure, study)


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.grid(True)


def _titled(figure: Figure, study: Study) -> Figure:
    figure.suptitle(study.title, fontsize=10)
    return figure


def _label(metric: Metric) -> str:
    """Return the label of an axis: the metric and its unit; a sum has it in its name."""
    return f"{metric.name.replace('_', ' ')}, {metric.unit.removeprefix('sum of ')}"


def _tick(row: StudyRow) -> str:
    name = f"{row.condition.method} {row.setting}".strip()
    return f"{name} ({len(row.by_seed)}/{row.planned})" if row.partial else name
