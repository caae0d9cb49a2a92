"""What every command shares: a parser whose errors are one line, and how a command ends.

``run_command`` is the one place where an error becomes a line on standard error and an exit code:

    0    done
    1    the call was right, but the work failed
    2    the call was wrong, nothing was done
    130  Ctrl-C (128 + the number of the signal)

What a single command does is in its own module.
"""

import argparse
import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from ..errors import Failed, Stopped, UserError, nearest

_WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage of all flags before it."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(print_errors(self.prog, [message], 2))

    def read(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Read the flags; return them, and a line per word that is not one, to be shown with other problems."""
        given, unknown = self.parse_known_args(words)
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        data_hint = "; a data folder is given as --data-dir" if "--data-dir" in known else ""
        problems = []
        for before, word in zip(["", *unknown], unknown):
            if word.startswith("-"):
                problems.append(f"unknown flag {word}{nearest(word.split('=')[0], known)}")
            elif not before.startswith("-"):  # otherwise it is the value of an unknown flag
                problems.append(f"unexpected argument {word!r}{data_hint}")
        return given, problems


def run_command(
    name: str, work: Callable[[list[str]], int], argv: Sequence[str] | None, *, on_interrupt: str
) -> NoReturn:
    """Run a command and exit, whatever happens with a line that says what to do about it.

    Args:
        name: of the command, the start of each line.
        work: takes the words of the command line and returns the exit code.
        argv: the words; None for those of this process. ``--debug`` among them prints tracebacks.
        on_interrupt: the line for Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = work(words)
    except KeyboardInterrupt:
        code = print_errors(name, [on_interrupt], 128 + signal.SIGINT)
    except BrokenPipeError:  # whoever read the output is gone
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        code = print_errors(name, _lines(error), _exit_code(error), everywhere=not _is_foreseen(error))
    raise SystemExit(code)


def _is_foreseen(error: Exception) -> bool:
    return isinstance(error, UserError) or (isinstance(error, OSError) and error.errno in _WRITE_ERRORS)


def _exit_code(error: Exception) -> int:
    if isinstance(error, Stopped):
        return 128 + error.signal
    return 2 if isinstance(error, UserError) and not isinstance(error, Failed) else 1


def _lines(error: Exception) -> list[str]:
    if isinstance(error, UserError):
        return error.problems
    if isinstance(error, OSError) and error.errno in _WRITE_ERRORS:
        where = f" {error.filename}" if error.filename else ""
        return [f"cannot write{where}: {error.strerror or error}; what was written before is kept, and can be resumed"]
    return [f"{type(error).__name__}: {' '.join(str(error).split())[:400]} (--debug shows where)"]


def check_minimums(given: argparse.Namespace, lowest: Mapping[str, int]) -> list[str]:
    """Return a line per number that was given and is below its lowest value."""
    values = {name: getattr(given, name) for name in lowest}
    return [
        f"--{name.replace('_', '-')} must be at least {lowest[name]}, got {value}"
        for name, value in values.items()
        if value is not None and value < lowest[name]
    ]


def print_errors(command: str, problems: Sequence[str], code: int, *, everywhere: bool = False) -> int:
    """Print each problem on a line of its own and return the exit code.

    Args:
        command: its name, the start of each line.
        problems: what is wrong; line breaks within a problem become spaces.
        code: the exit code.
        everywhere: print in every process, since an unforeseen failure may differ; otherwise the first process of
            each machine speaks for the others.
    """
    rank, local_rank = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
    if local_rank == 0 or everywhere:
        name = f"{command}, process {rank}" if rank else command
        with suppress(BrokenPipeError):  # whoever read the messages is gone; the exit code remains
            for problem in problems:
                print(f"{name}: {' '.join(problem.split())}", file=sys.stderr, flush=True)
    return code
