"""The pages of a report: blocks of text, tables and pictures as Markdown, or as HTML in a single file.

A page is a list of blocks; nothing here knows a suite or a result.
"""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..system.markdown import escape

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;display:block;overflow-x:auto;margin:1em 0}td,th{border:1px solid #ccc;"
    "padding:.25em .6em;text-align:right;white-space:nowrap}td:first-child,th:first-child{text-align:left}"
    "img{max-width:100%}p.small{color:#666;font-size:.85em}"
)


@dataclass(frozen=True)
class Block:
    """One element of a page: a table has ``lines``, all others ``text``; that of a picture is its name."""

    kind: Literal["title", "heading", "text", "small", "table", "picture"]
    text: str = ""
    lines: tuple[tuple[str, ...], ...] = ()


def as_markdown(blocks: Sequence[Block]) -> str:
    """Return the page as Markdown; its pictures are files in the same folder."""
    parts = []
    for block in blocks:
        if block.kind == "table":
            head, *body = [[escape(cell) for cell in line] for line in block.lines]
            lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        elif block.kind == "picture":
            parts.append(f"![{block.text}]({block.text}.png)")
        else:
            parts.append({"title": "# ", "heading": "## "}.get(block.kind, "") + escape(block.text))
    return "\n\n".join(parts) + "\n"


def as_html(blocks: Sequence[Block], pictures: Mapping[str, bytes]) -> str:
    """Return the page as HTML with its pictures embedded."""
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
