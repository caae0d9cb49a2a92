"""The pages of a report: blocks of text, tables and pictures as Markdown, or as HTML in a single file.

A page is a list of blocks; nothing here knows a suite or a result.
"""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .markdown import escape
from .tables import html_table, markdown_table

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;display:block;overflow-x:auto;margin:1em 0}td,th{border:1px solid #ccc;"
    "padding:.25em .6em;text-align:right;white-space:nowrap}td:first-child,th:first-child{text-align:left}"
    "img{max-width:100%}p.small{color:#666;font-size:.85em}"
)
_MARKDOWN = {"title": "# ", "heading": "## "}
_HTML = {"title": "<h1>{}</h1>", "heading": "<h2>{}</h2>", "text": "<p>{}</p>", "small": '<p class="small">{}</p>'}


@dataclass(frozen=True)
class Block:
    """One element of a page: a table has ``lines``, all others ``text``; of a picture it is the name."""

    kind: Literal["title", "heading", "text", "small", "table", "picture"]
    text: str = ""
    lines: tuple[tuple[str, ...], ...] = ()


def as_markdown(blocks: Sequence[Block]) -> str:
    """Return the page as Markdown; its pictures are files in the same folder."""
    parts = []
    for block in blocks:
        if block.kind == "table":
            parts.append(markdown_table(block.lines))
        elif block.kind == "picture":
            parts.append(f"![{block.text}]({block.text}.png)")
        else:
            parts.append(_MARKDOWN.get(block.kind, "") + escape(block.text))
    return "\n\n".join(parts) + "\n"


def as_html(blocks: Sequence[Block], pictures: Mapping[str, bytes]) -> str:
    """Return the page as HTML with its pictures embedded."""
    parts = []
    for block in blocks:
        if block.kind == "table":
            parts.append(html_table(block.lines))
        elif block.kind == "picture":
            content = base64.b64encode(pictures[block.text]).decode()
            parts.append(f'<p><img alt="{html.escape(block.text)}" src="data:image/png;base64,{content}"></p>')
        else:
            parts.append(_HTML[block.kind].format(html.escape(block.text)))
    head = f'<meta charset="utf-8"><title>Evaluation</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'
