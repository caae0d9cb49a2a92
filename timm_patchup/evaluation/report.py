"""The report: ``report.md``, ``report.html`` as a single file, and one PNG per figure.

Both pages consist of the same blocks. Every table is followed by the settings, number of samples and seed of its
numbers.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..report.figures import as_png
from ..report.pages import Block, as_html, as_markdown
from ..system.files import write_whole
from .results import Entry, Results
from .rows import ResultRow, make_rows
from .suite import OptionValues, Suite
from .suites import SUITES


def write_report(results: Results, options: OptionValues) -> list[str]:
    """Write the pages and figures, add the suites' extra results, and return the tables for the terminal.

    results.json itself is not written.
    """
    shown = [(suite, rows) for suite in SUITES.values() if (rows := make_rows(results, suite.name))]
    pictures = {suite.name: as_png(suite.figure, rows) for suite, rows in shown if suite.figure is not None}
    for name, content in pictures.items():
        write_whole(results.folder / f"{name}.png", content)
    blocks = _blocks(results, shown, options)
    write_whole(results.folder / "report.md", as_markdown(blocks))
    write_whole(results.folder / "report.html", as_html(blocks, pictures))
    return [as_markdown([block]).rstrip("\n") for block in blocks if block.kind in ("heading", "table")]


def _blocks(results: Results, shown: Sequence[tuple[Suite, Sequence[ResultRow]]], options: OptionValues) -> list[Block]:
    data = {name: value for name, value in results.data.items() if value is not None}
    blocks = [Block("title", "Evaluation"), Block("text", f"Data: {_listed(data)}.")]
    if any(len(row.entries) > 1 for _, rows in shown for row in rows):
        blocks.append(Block("text", "± is the sample standard deviation over the seeds of one recipe."))
    for suite, rows in shown:
        blocks.append(Block("heading", suite.title + (f": {suite.unit}" if suite.unit else "")))
        blocks.append(Block("table", lines=_table(suite, rows)))
        if suite.extra is not None:
            extra = suite.extra(rows, options)
            results.extra |= extra.stored
            blocks += extra.blocks
        if suite.figure is not None:
            blocks.append(Block("picture", suite.name))
        blocks += [Block("small", text) for text in _conditions(results.suites[suite.name])]
    return blocks


def _table(suite: Suite, rows: Sequence[ResultRow]) -> tuple[tuple[str, ...], ...]:
    keys = list(dict.fromkeys(key for row in rows for key in row.values))
    cells = [[row[key].with_std(suite.digits) for key in keys] for row in rows]
    names, labels = [row.label for row in rows], [suite.labels.get(key, key.replace("_", " ")) for key in keys]
    if suite.tall:
        return (("", *names), *((label, *column) for label, column in zip(labels, zip(*cells))))
    return (("model", *labels), *((name, *line) for name, line in zip(names, cells)))


def _conditions(entries: Mapping[str, Entry]) -> list[str]:
    """Return the settings of the numbers: one line if they are the same for all models."""
    by_settings: dict[str, list[str]] = {}
    for name, entry in entries.items():
        text = f"{entry['count']} samples, seed {entry['seed']}. {_listed(entry['settings'])}."
        by_settings.setdefault(text, []).append(name)
    if len(by_settings) == 1:
        return list(by_settings)
    return [f"{', '.join(names)}: {text}" for text, names in by_settings.items()]


def _listed(values: Mapping[str, Any]) -> str:
    """Return names and values in one line, separated by semicolons because values may contain commas."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return "; ".join(f"{name}: {text}" for name, text in texts.items())
