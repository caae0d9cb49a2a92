"""Tables as Markdown, HTML and CSV; the first line of each is its head."""

import csv
import html
import io
from collections.abc import Iterable, Sequence

from .markdown import escape_cell


def markdown_table(lines: Iterable[Sequence[str]], *, aligned: bool = False) -> str:
    """Return a Markdown table of plain text.

    Args:
        lines: its lines, each with one cell per column.
        aligned: pad the cells, so that the source can be read as a table; otherwise numbers are aligned when it is
            shown.
    """
    cells = [[escape_cell(cell) for cell in line] for line in lines]
    rule = ["---", *["---:"] * (len(cells[0]) - 1)]
    if aligned:
        widths = [max(map(len, column)) for column in zip(*cells)]
        cells = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in cells]
        rule = ["-" * width for width in widths]
    return "\n".join(f"| {' | '.join(line)} |" for line in (cells[0], rule, *cells[1:]))


def html_table(lines: Sequence[Sequence[str]]) -> str:
    """Return an HTML table of plain text."""
    tags = ["th", *["td"] * (len(lines) - 1)]
    cells = (("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line)) for tag, line in zip(tags, lines))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"


def comma_separated(lines: Iterable[Iterable[object]]) -> str:
    """Return lines as CSV with all digits; a field that is None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(["" if value is None else value for value in line] for line in lines)
    return text.getvalue()
