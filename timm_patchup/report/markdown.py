"""Text that others choose, such as names and titles, made harmless for a Markdown page."""

import re

# Of CommonMark: escapes, code, emphasis, links and images; of GitHub's and the Hub's: tables, struck text, formulas.
_ALWAYS = re.compile(r"[\\`*\[\]|~$]")
_UNDERSCORES = re.compile(r"(?<!\w)_+|_+(?!\w)")  # within a word they have no effect, so that names stay readable
_ENTITY = re.compile(r"&(?=#?\w+;)")
_ADDRESS = re.compile(r"(?<=[A-Za-z]):(?=//)|(?<=www)\.", re.IGNORECASE)
# What begins a block: a heading, a quote, an item of a list, a line across the page.
_BLOCK = re.compile(r"^(#+(?=\s|$)|>|[-+=](?=\s|$)|[-=](?=[-=\s]*$))|^(\d+)([.)])(?=\s|$)")


def escape(text: str) -> str:
    """Return text on one line that Markdown shows as it is: no table, link, code, emphasis or HTML begins in it."""
    return _BLOCK.sub(lambda found: f"{found[2]}\\{found[3]}" if found[2] else f"\\{found[0]}", escape_cell(text))


def escape_cell(text: str) -> str:
    """Return text for the cell of a table, where no block such as a list can begin."""
    line = _ALWAYS.sub(r"\\\g<0>", " ".join(text.split()))
    line = _UNDERSCORES.sub(lambda found: r"\_" * len(found[0]), line)
    line = _ADDRESS.sub(r"\\\g<0>", line)
    return _ENTITY.sub("&amp;", line).replace("<", "&lt;")


def code(text: str) -> str:
    """Return text on one line as code, whatever backticks it has."""
    line = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if "`" in line else ""
    return f"{fence}{space}{line}{space}{fence}"
