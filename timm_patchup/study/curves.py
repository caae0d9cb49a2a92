"""Figures of a study with lines, as the paper's: its hyper-parameters (figure 12), FGSM and corruptions (4, 5, 13, 15).

A study that varies one or two settings has curves over the first, one per value of the second. An evaluation that names
its ``lines`` has one per method over its values. The 95% interval of a mean over seeds is a band or a bar.
"""

import re
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from ..evaluation.figures import panel_grid, plain_text
from ..recipe.schema import MIX_PREFIX
from ..system.files import replacing
from .collect import StudyRow
from .definition import METRICS, Evaluation, Study
from .tables import plot

RESULTS = "results.png"


def plot_study(study: Study, rows: Sequence[StudyRow], folder: Path) -> list[str]:
    """Plot the figures of a study and return the names of their files.

    ``results.png`` has the metrics of the training or the first evaluation; each further evaluation with lines has a
    file of its own.
    """
    parts = {part: f"{part.metric}.png" for part in study.evaluation if part.lines}
    with plain_text():
        if study.evaluation and study.evaluation[0].lines:
            parts[study.evaluation[0]] = RESULTS
        else:
            (plot_curves if is_grid(study) else plot)(study, rows, folder / RESULTS)
        for part, name in parts.items():
            plot_lines(study, part, rows, folder / name)
    return list(dict.fromkeys([RESULTS, *parts.values()]))


def is_grid(study: Study) -> bool:
    """Whether every condition varies one or two numbers, so that its results are curves; not beside printed numbers."""
    return not study.paper and all(
        1 <= len(condition.varied) <= 2 and all(isinstance(value, Real) for value in condition.varied.values())
        for condition in study.conditions
    )


def plot_curves(study: Study, rows: Sequence[StudyRow], path: Path) -> None:
    """Plot the first metric over the first setting, one panel per benchmark and method, to a PNG file."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.metric == study.plotted and row.mean is not None]
    panels: dict[tuple[str, str, str], dict[str, list[tuple[float, float, float]]]] = {}
    for condition in study.conditions:
        x, *_ = condition.varied
        panels.setdefault((condition.benchmark, condition.method, x), {})
    for row in shown:
        (x, value), *second = row.condition.varied.items()
        line = f"{second[0][0].removeprefix(MIX_PREFIX)} {second[0][1]}" if second else ""
        points = panels[(row.condition.benchmark, row.condition.method, x)].setdefault(line, [])
        points.append((float(value), row.mean or 0.0, row.half_width))
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    for axes, ((benchmark, method, x), lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        for line, points in lines.items():
            values, means, bars = zip(*sorted(points))
            axes.plot(values, means, marker="o", markersize=4, label=line)
            low, high = ([mean + sign * bar for mean, bar in zip(means, bars)] for sign in (-1, 1))
            axes.fill_between(values, low, high, alpha=0.2)
        if any(lines):
            axes.legend(fontsize=8)
        axes.set_xlabel(x.removeprefix(MIX_PREFIX))
        axes.set_ylabel(_axis(study.plotted))
        axes.set_title(f"{benchmark}, {method}", fontsize=9)
        axes.grid(alpha=0.3)
    figure.suptitle(study.title, fontsize=10)
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format="png")


def plot_lines(study: Study, part: Evaluation, rows: Sequence[StudyRow], path: Path) -> None:
    """Plot an evaluation, one panel per benchmark and one line per method over its values, to a PNG file."""
    shown = [row for row in rows if row.metric == part.metric and row.setting in part.values]
    benchmarks, methods = (
        list(dict.fromkeys(getattr(condition, name) for condition in study.conditions))
        for name in ("benchmark", "method")
    )
    figure, panels = panel_grid(len(benchmarks))
    numbers = _are_numbers(part.values)
    places = {value: float(value) if numbers else place for place, value in enumerate(part.values)}
    plotted: dict[str, Any] = {}  # by method, in any panel: an unfinished study has gaps
    for axes, benchmark in zip(panels, benchmarks):
        for number, method in enumerate(methods):
            condition = benchmark, method
            points = [
                row for row in shown if (row.condition.benchmark, row.condition.method) == condition and row.values
            ]
            if points:
                at, means = zip(*((places[row.setting], row.mean) for row in points))
                bars = {"yerr": [row.half_width for row in points], "capsize": 2}
                plotted[method] = axes.errorbar(at, means, **bars, color=f"C{number}", marker="o", markersize=3)
        names = [value.replace("_", " ") for value in places]
        axes.set_xticks(list(places.values()), names, rotation=0 if numbers else 90, fontsize=7)
        axes.set_xlabel(part.lines)
        axes.set_ylabel(_axis(part.metric))
        axes.set_title(benchmark, fontsize=9)
        axes.grid(alpha=0.3)
    if plotted:
        place = {"loc": "outside lower center", "ncols": len(plotted)}
        figure.legend(list(plotted.values()), list(plotted), **place, fontsize=8)
    figure.suptitle(study.title, fontsize=10)
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format="png")


def _are_numbers(values: Sequence[str]) -> bool:
    return all(re.fullmatch(r"[0-9.]+", value) for value in values)


def _axis(metric: str) -> str:
    """Return the label of an axis: the metric and its unit, of which a sum is in its name."""
    return f"{metric.replace('_', ' ')}, {METRICS[metric].removeprefix('sum of ')}"
