"""Numbers with their digits, aligned Markdown tables and CSV, for all tables of a study."""

import csv
import io
from collections.abc import Iterable, Sequence

DIGITS = {"%": 2, "sum of %": 1, "nats": 3, "x": 2, "magnitude": 4, "radians": 4, "score": 3}


def number(mean: float | None, spread: tuple[float, float] | float | None, digits: int, *, signed: bool = False) -> str:
    """Return ``mean [low, high]`` for an interval, ``mean ± spread`` for a deviation; ``-`` if there is no mean."""
    if mean is None:
        return "-"

    def text(value: float) -> str:
        return f"{round(value, digits) + 0.0:{'+' if signed else ''}.{digits}f}"  # no -0.00

    if spread is None:
        return text(mean)
    if isinstance(spread, tuple):
        return f"{text(mean)} [{', '.join(map(text, spread))}]"
    return f"{text(mean)} ± {spread:.{digits}f}"


def aligned(body: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table with aligned columns; the first line of ``body`` is its head."""
    widths = [max(len(cells[i]) for cells in body) for i in range(len(body[0]))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(cells, widths)) + " |" for cells in body]
    return [lines[0], "| " + " | ".join("-" * width for width in widths) + " |", *lines[1:]]


def comma_separated(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return lines as CSV with all digits; a field that is None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if value is None else value for value in line] for line in lines)
    return text.getvalue()
