"""What the suites' figures have in common: bars per row of a report, empty figures and panels, and the PNG.

matplotlib is imported when a figure is plotted: the evaluation starts without it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import ceil
from typing import Any

import numpy as np

from .results import Entry
from .rows import Number, ResultRow, values_of

Entries = Mapping[str, Entry]


def bars(entries: Entries, rows: Sequence[ResultRow], *, ylabel: str, without: str = "") -> Any:
    """Plot one group of bars per value and one bar per row, but no values whose name contains ``without``."""
    figure, axes = single_panel()
    values = [values_of(row, entries) for row in rows]
    keys = [key for key in values[0] if not (without and without in key)]
    width = 0.8 / len(rows)
    for position, (row, own) in enumerate(zip(rows, values)):
        numbers = [own.get(key) for key in keys]
        heights = [number.mean if number else 0.0 for number in numbers]
        places = np.arange(len(keys)) + (position - (len(rows) - 1) / 2) * width
        axes.bar(places, heights, width, yerr=error_bars(row, numbers), capsize=2, label=row.label)
    axes.set_xticks(range(len(keys)), [key.replace("_", " ") for key in keys], rotation=45, ha="right")
    axes.set_ylabel(ylabel)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def error_bars(row: ResultRow, numbers: Sequence[Number | None]) -> list[float] | None:
    """Return the standard deviations of a row of several seeds, None for a single model."""
    if len(row.members) == 1:
        return None
    return [number.std or 0.0 if number else 0.0 for number in numbers]


def single_panel() -> tuple[Any, Any]:
    """Return a figure and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    return figure, figure.subplots()


def panel_grid(count: int) -> tuple[Any, list[Any]]:
    """Return a figure and ``count`` axes, three per line."""
    from matplotlib.figure import Figure

    columns = min(count, 3)
    lines = ceil(count / columns)
    figure = Figure(figsize=(4.5 * columns, 3.6 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for empty in panels[count:]:
        empty.set_axis_off()
    return figure, panels


@contextmanager
def plain_text() -> Iterator[None]:
    """Plot names as they are: between two dollar signs in one, matplotlib would read a formula, or fail to."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):
        yield


def as_png(figure: Any) -> bytes:
    content = BytesIO()
    figure.savefig(content, dpi=110, format="png")
    return content.getvalue()
