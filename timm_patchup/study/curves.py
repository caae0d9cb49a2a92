"""The figure of a study that varies one or two settings: curves over the first, one per value of the second.

As the paper's figure 12 shows its hyper-parameters, with the standard deviation over seeds as a band.
"""

from collections.abc import Sequence
from numbers import Real
from pathlib import Path

from ..recipe.schema import MIX_PREFIX
from ..system.files import replacing
from .collect import StudyRow
from .definition import Study


def is_grid(study: Study) -> bool:
    """Whether every condition varies one or two numbers, so that its results are curves."""
    return all(
        1 <= len(condition.overrides) <= 2 and all(isinstance(value, Real) for value in condition.overrides.values())
        for condition in study.conditions
    )


def plot_curves(study: Study, rows: Sequence[StudyRow], path: Path) -> None:
    """Plot the first metric over the first setting, one panel per benchmark and method, to a PNG file."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.metric == study.plotted and row.mean is not None]
    panels: dict[tuple[str, str, str], dict[str, list[tuple[float, float, float]]]] = {}
    for condition in study.conditions:
        x, *_ = condition.overrides
        panels.setdefault((condition.benchmark, condition.method, x), {})
    for row in shown:
        (x, value), *second = row.condition.overrides.items()
        line = f"{second[0][0].removeprefix(MIX_PREFIX)} {second[0][1]}" if second else ""
        points = panels[(row.condition.benchmark, row.condition.method, x)].setdefault(line, [])
        points.append((float(value), row.mean or 0.0, row.std or 0.0))
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    for axes, ((benchmark, method, x), lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        for line, points in lines.items():
            values, means, stds = zip(*sorted(points))
            axes.plot(values, means, marker="o", markersize=4, label=line)
            low, high = ([mean + sign * std for mean, std in zip(means, stds)] for sign in (-1, 1))
            axes.fill_between(values, low, high, alpha=0.2)
        if any(lines):
            axes.legend(fontsize=8)
        axes.set_xlabel(x.removeprefix(MIX_PREFIX))
        axes.set_ylabel(study.plotted.replace("_", " "))
        axes.set_title(f"{benchmark}, {method}", fontsize=9)
        axes.grid(alpha=0.3)
    figure.suptitle(study.title, fontsize=10)
    with replacing(path) as partial:
        figure.savefig(partial, dpi=110, format="png")
