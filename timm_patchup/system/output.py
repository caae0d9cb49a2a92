"""Print lines: every command prints through ``say``, so that what happens to its output is decided here.

What a command does must not depend on whether and how somebody reads along: a closed terminal, a reader that has
exited, a full disk, an encoding that lacks a character. And names of classes, files and settings, which may come from a
file of somebody else, must not control the terminal or look like other lines.
"""

import errno
import io
import json
import os
import stat
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO


def say(*lines: str, stream: TextIO | None = None) -> None:
    """Print lines, each in one piece and printable; default standard output.

    Lines are separate arguments: a line break within one comes from a value, and is printed as an escape.
    """
    stream = sys.stdout if stream is None else stream
    for line in lines:
        # In one piece: print may write the end of the line after the line of another process.
        stream.write(f"{printable(line)}\n")
    stream.flush()


def printable(text: str) -> str:
    """Return text with JSON's escapes for what is not printable: line breaks, control characters (of terminals and of
    the direction of writing), halves of surrogate pairs. What was JSON stays JSON.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or unicodedata.category(one) == "Zs" else json.dumps(one)[1:-1] for one in text
    )


def discard(stream: TextIO) -> None:
    """Write to nowhere what is written to a stream from now on, and what it still holds."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def accept_any_name() -> None:
    """Print what the encoding of the output lacks as escapes, and read names of files that are in another encoding.

    Python's default is an error, which would end a command at the first such name of a class or a file.
    """
    for stream, errors in ((sys.stdout, "backslashreplace"), (sys.stdin, "surrogateescape")):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=errors)


@contextmanager
def outliving_terminal() -> Iterator[None]:
    """Write to a terminal inside the block; if it is gone, do without it.

    SIGHUP announces that, and the next line that is printed fails, which must not come before the checkpoint.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                    discard(stream)
