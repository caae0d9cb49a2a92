"""The look of all figures: text, grid, resolution, panels. Nothing else knows how a figure is laid out or saved.

A figure is plotted by a function that takes its axes from ``panels``; ``save`` and ``as_png`` call it.
matplotlib is imported when a figure is plotted: commands start without it.
"""

from collections.abc import Callable
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any

from ..system.files import write_whole

Figure = Any
Axes = Any
_LOOK: Any = {
    "text.parse_math": False,  # between two dollar signs in a name, matplotlib would read a formula, or fail to
    "grid.alpha": 0.3,
    "savefig.dpi": 110,
}


def as_png(plot: Callable[..., Figure], *arguments: Any, **keywords: Any) -> bytes:
    """Return the PNG of the figure that ``plot`` returns."""
    from matplotlib import rc_context

    content = BytesIO()
    with rc_context(_LOOK):
        plot(*arguments, **keywords).savefig(content, format="png")
    return content.getvalue()


def save(path: Path, plot: Callable[..., Figure], *arguments: Any, **keywords: Any) -> None:
    """Write the figure that ``plot`` returns to a PNG file."""
    write_whole(path, as_png(plot, *arguments, **keywords))


def panels(
    count: int = 1, *, width: float = 4.5, height: float = 3.6, columns: int = 3, margin: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """Return a figure and ``count`` axes.

    Args:
        count: number of panels.
        width: width of each in inches.
        height: height of each in inches.
        columns: panels per line.
        margin: width beside all panels.
    """
    from matplotlib.figure import Figure

    columns = min(count, columns)
    lines = ceil(count / columns)
    figure = Figure(figsize=(margin + width * columns, height * lines), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for empty in axes[count:]:
        empty.set_axis_off()
    return figure, axes[:count]
