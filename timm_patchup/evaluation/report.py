"""The report: ``report.md``, ``report.html`` in one file that opens from disk, and a PNG for each figure.

Both pages are made from the same blocks. Every table says with which settings, on how many samples and with which seed
its numbers were made.
"""

import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .corruptions import mean_corruption_error
from .figures import draw_figures
from .results import Results, write_bytes
from .rows import Number, Row, make_rows, number, values_of
from .suites import SUITES, Suite

# Suites with more numbers than models: numbers go down, models across, as in the paper.
_TALL = ("affine", "fgsm", "corruptions", "activations", "geometry", "attacks")
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;display:block;overflow-x:auto;margin:1em 0}td,th{border:1px solid #ccc;"
    "padding:.25em .6em;text-align:right;white-space:nowrap}td:first-child,th:first-child{text-align:left}"
    "img{max-width:100%}p.small{color:#666;font-size:.85em}"
)


@dataclass(frozen=True)
class Block:
    """A piece of a page: ``title``, ``heading``, ``text``, ``table`` or ``picture``."""

    kind: str
    text: str = ""
    lines: tuple[tuple[str, ...], ...] = ()


def write_report(results: Results, *, baseline: str | None = None) -> list[str]:
    """Write everything but results.json, and return the lines of the tables for the terminal."""
    pictures = draw_figures(results)
    for name, content in pictures.items():
        write_bytes(results.folder / f"{name}.png", content)
    blocks = _blocks(results, pictures, baseline)
    write_bytes(results.folder / "report.md", as_markdown(blocks).encode())
    write_bytes(results.folder / "report.html", as_html(blocks, pictures).encode())
    return [as_markdown([block]).rstrip("\n") for block in blocks if block.kind in ("heading", "table")]


def corruption_errors(results: Results, baseline: str) -> dict[str, Any]:
    """Return mCE of every row against the row of a model, as results.json keeps it; none for rows on other images."""
    entries, rows = results.suites.get("corruptions", {}), make_rows(results, "corruptions")
    against = next((row for row in rows if baseline in row.members), None)
    if against is None:
        return {}
    reference = {key: value.mean if value else None for key, value in values_of(against, entries).items()}
    found: dict[str, Any] = {}
    for row in rows:
        if _images_of(entries[row.members[0]]) != _images_of(entries[against.members[0]]):
            continue
        each = [mean_corruption_error(entries[name]["values"], reference) for name in row.members]
        mean = number([value for value in each if value is not None])
        if mean is not None:
            found[row.label] = {"mean": mean.mean, "std": mean.std}
    return {"baseline": against.label, "unit": "%", "values": found}


def _images_of(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return which corrupted images a model saw: the files, or the seed they were made with."""
    return entry["settings"]["images"], entry["seed"]


def _blocks(results: Results, pictures: Mapping[str, bytes], baseline: str | None) -> list[Block]:
    data = {name: value for name, value in results.data.items() if value is not None}
    blocks = [Block("title", "Evaluation"), Block("text", f"Data: {_listed(data)}.")]
    if any(len(row.members) > 1 for name in SUITES for row in make_rows(results, name)):
        blocks.append(Block("text", "± is the sample standard deviation over the seeds of one recipe."))
    for name, suite in SUITES.items():
        entries = results.suites.get(name, {})
        rows = make_rows(results, name)
        if not rows:
            continue
        blocks.append(Block("heading", suite.title + (f": {suite.unit}" if suite.unit else "")))
        blocks.append(Block("table", lines=_table(suite, entries, rows)))
        if name == "corruptions":
            blocks += _mce_blocks(results, rows, baseline)
        if name in pictures:
            blocks.append(Block("picture", name))
        blocks += [Block("small", text) for text in _conditions(entries)]
    return blocks


def _table(suite: Suite, entries: Mapping[str, Any], rows: Sequence[Row]) -> tuple[tuple[str, ...], ...]:
    values = [values_of(row, dict(entries)) for row in rows]
    keys = list(dict.fromkeys(key for own in values for key in own))
    cells = [
        [own[key].show(suite.digits) if own.get(key) else "-" for key in keys]  # type: ignore[union-attr]
        for own in values
    ]
    names, labels = [row.label for row in rows], [suite.labels.get(key, key.replace("_", " ")) for key in keys]
    if suite.name in _TALL:
        return (("", *names), *((label, *column) for label, column in zip(labels, zip(*cells))))
    return (("model", *labels), *((name, *line) for name, line in zip(names, cells)))


def _mce_blocks(results: Results, rows: Sequence[Row], baseline: str | None) -> list[Block]:
    if baseline is None:
        return [Block("small", "--baseline NAME adds mCE, the mean of E_c relative to that model's.")]
    results.mce = corruption_errors(results, baseline)
    if not results.mce:
        return [Block("small", f"No mCE: {baseline} has no results of this suite.")]
    lines = [("model", f"mCE, %, against {results.mce['baseline']}")]
    for row in rows:
        value = results.mce["values"].get(row.label)
        lines.append((row.label, "-" if value is None else Number(value["mean"], value["std"]).show(1)))
    return [Block("table", lines=tuple(lines))]


def _conditions(entries: Mapping[str, Any]) -> list[str]:
    """Return under which settings the numbers were made: one line where they are the same for all models."""
    by_settings: dict[str, list[str]] = {}
    for name, entry in entries.items():
        text = f"{entry['count']} samples, seed {entry['seed']}. {_listed(entry['settings'])}."
        by_settings.setdefault(text, []).append(name)
    if len(by_settings) == 1:
        return list(by_settings)
    return [f"{', '.join(names)}: {text}" for text, names in by_settings.items()]


def _listed(values: Mapping[str, Any]) -> str:
    """Return names and values in one line; values are sentences, too, so commas would not keep them apart."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return "; ".join(f"{name}: {text}" for name, text in texts.items())


def as_markdown(blocks: Sequence[Block]) -> str:
    """Return the page as Markdown; pictures are files beside it."""
    parts = []
    for block in blocks:
        if block.kind == "table":
            head, *body = [[cell.replace("|", "\\|") for cell in line] for line in block.lines]
            lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        elif block.kind == "picture":
            parts.append(f"![{block.text}]({block.text}.png)")
        else:
            parts.append({"title": "# ", "heading": "## "}.get(block.kind, "") + block.text)
    return "\n\n".join(parts) + "\n"


def as_html(blocks: Sequence[Block], pictures: Mapping[str, bytes]) -> str:
    """Return the page as HTML with its pictures inside."""
    parts = []
    tags = {"title": "h1", "heading": "h2", "text": "p"}
    for block in blocks:
        if block.kind == "table":
            lines = []
            for position, line in enumerate(block.lines):
                tag = "td" if position else "th"
                lines.append(f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in line)}</tr>")
            parts.append(f"<table>{''.join(lines)}</table>")
        elif block.kind == "picture":
            content = base64.b64encode(pictures[block.text]).decode()
            parts.append(f'<p><img alt="{html.escape(block.text)}" src="data:image/png;base64,{content}"></p>')
        elif block.kind == "small":
            parts.append(f'<p class="small">{html.escape(block.text)}</p>')
        else:
            parts.append(f"<{tags[block.kind]}>{html.escape(block.text)}</{tags[block.kind]}>")
    head = f'<meta charset="utf-8"><title>Evaluation</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'
