"""Survive what happens to standard output and standard error: a closed terminal, a reader that has exited, a full disk,
an encoding that lacks a character.

What a command does must not depend on whether and how somebody reads along.
"""

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO


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
