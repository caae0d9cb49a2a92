"""Charts of series: bars per value, and lines over the values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .figures import Axes, Figure, panels
from .numbers import SeedValues, Series


def bars(rows: Sequence[Series], *, ylabel: str, without: str = "") -> Figure:
    """Plot one group of bars per value and one bar per series, but no values whose name contains ``without``."""
    figure, (axes,) = panels(width=9, height=4.5)
    names = [name for name in rows[0].values if not (without and without in name)]
    width = 0.8 / len(rows)
    for position, row in enumerate(rows):
        values = [row[name] for name in names]
        places = np.arange(len(names)) + (position - (len(rows) - 1) / 2) * width
        heights = [value.mean or 0.0 for value in values]
        axes.bar(places, heights, width, yerr=_error_bars(value.std for value in values), capsize=2, label=row.label)
    axes.set_xticks(range(len(names)), [name.replace("_", " ") for name in names], rotation=45, ha="right")
    axes.set_ylabel(ylabel)
    axes.grid(True, axis="y")
    axes.legend(fontsize="small")
    return figure


def lines(
    axes: Axes, rows: Sequence[Series], places: Mapping[str, float], *, spread: Callable[[SeedValues], float | None]
) -> dict[str, Any]:
    """Plot a line with error bars per series that has values, and return what a legend needs, by label.

    Args:
        axes: the axes.
        rows: the series; the number of one decides its colour, so that it is the same in all panels.
        places: where each value is.
        spread: the length of the error bar of a value, None for none.
    """
    plotted = {}
    for number, row in enumerate(rows):
        names = [name for name in places if row[name].values]
        if names:
            means, ends = [row[name].mean for name in names], _error_bars(spread(row[name]) for name in names)
            style = {"color": f"C{number}", "marker": "o", "markersize": 3, "capsize": 2}
            at = [places[name] for name in names]
            plotted[row.label] = axes.errorbar(at, means, yerr=ends, label=row.label, **style)
    return plotted


def _error_bars(spreads: Iterable[float | None]) -> list[float] | None:
    known = list(spreads)
    return None if all(spread is None for spread in known) else [spread or 0.0 for spread in known]
