"""Survive the loss of standard output or standard error: a closed terminal, a reader that has exited, a full disk.

What a command does must not depend on whether somebody reads along.
"""

import errno
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
