"""Text that users choose, such as names and titles, made harmless for a Markdown page."""

import re


def escape(text: str) -> str:
    """Return text on one line that Markdown shows as it is: no table, link, code, emphasis or HTML begins in it.

    Underscores and brackets stay as they are where they have no effect, so that names can be read in the source.
    """
    line = " ".join(text.split())
    line = re.sub(r"([\\`*|])", r"\\\1", line)
    line = re.sub(r"\[(?=[^\]]*\][(\[])|(?<![\w])_|_(?![\w])", r"\\\g<0>", line)
    line = re.sub(r"^(#+|[-+>]|\d+\.)(?=\s)", r"\\\1", line)
    return line.replace("<", "&lt;")
