"""What all commands share: a parser whose errors are one line, and how a command ends.

``run_command`` turns errors into lines on standard error and exit codes, for all commands alike:

    0    done
    1    the call was right, but the work failed
    2    the call was wrong, nothing was done
    130  Ctrl-C (128 + number of the signal)
"""

import argparse
import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ..errors import SiteError, Stopped, UserError, brief, nearest, one_line
from ..system.output import accept_any_name, discard, say

MOST_THREADS = 1024
# Errors of the file system that a user can put right, with what failed.
_FILE_ERRORS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS), "cannot write")
_FILE_ERRORS |= dict.fromkeys((errno.EACCES, errno.EPERM, errno.EIO), "cannot access")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage, and whose help ends with examples.

    Args:
        examples: calls of the command, one per line.
        **settings: as for ``argparse.ArgumentParser``.
    """

    def __init__(self, *, examples: Sequence[str] = (), **settings: Any) -> None:
        if examples:
            settings["epilog"] = "\n".join(["examples:", *(f"  {line}" for line in examples)])
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **settings})

    def error(self, message: str) -> NoReturn:
        flag = re.fullmatch(r"argument (--[\w-]+).*: expected (one|at least one) argument", message)
        text = (self._option_string_actions[flag[1]].help or "").replace("%%", "%") if flag else ""
        raise SystemExit(print_errors(self.prog, [f"{message}: {text}" if text else message], 2))

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            say(*message.removesuffix("\n").split("\n"), stream=file or sys.stderr)

    def read(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse the flags; return them, and a line per unknown word, to be shown with other problems.

        A flag that is given twice is a note, not a problem: a study overrides flags by adding them once more.
        """
        given, unknown = self.parse_known_args(words)
        print_errors(self.prog, flags_given_twice(self, words), 0)
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        ways = {"--recipe": "a recipe with --recipe", "--data-dir": "a data folder with --data-dir"}
        given_with = [way for flag, way in ways.items() if flag in known]
        hint = f"; give {', '.join(given_with)}" if given_with else ""
        problems = []
        for before, word in zip(["", *unknown], unknown):
            if word.startswith("-"):
                problems.append(f"unknown flag {word}{nearest(word.split('=')[0], known) or '; --help lists all'}")
            elif not before.startswith("-"):  # otherwise it is the value of an unknown flag
                problems.append(f"unexpected argument {brief(word)}{hint}")
        return given, problems


def run_command(
    name: str,
    work: Callable[[list[str]], int],
    argv: Sequence[str] | None,
    *,
    on_interrupt: str,
    on_file_error: str = "run the command again once that is fixed",
) -> NoReturn:
    """Run a command and exit; if it fails, print what happened and the next step.

    Args:
        name: name of the command, the start of each line.
        work: takes the words of the command line and returns the exit code.
        argv: the words; None for the arguments of this process. With ``--debug`` among them tracebacks are printed.
        on_interrupt: the line for Ctrl-C.
        on_file_error: the next step if a file cannot be written or accessed.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    accept_any_name()
    try:
        code = work(words)
    except KeyboardInterrupt:
        code = print_errors(name, [on_interrupt], 128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of the output is gone
        discard(sys.stdout)
        code = 1
    except Exception as error:
        if "--debug" in words:
            say(*traceback.format_exc().rstrip().split("\n"), stream=sys.stderr)
        code = report(name, error, on_file_error=on_file_error)
        if isinstance(error, UserError):  # raised between two collective calls, so none is under way
            _leave_group()
    raise SystemExit(code)


def _leave_group() -> None:
    """Leave gloo's process group, if this process is in one: with its threads alive, the exit may end in SIGABRT."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized() and distributed.get_backend() == "gloo":
        distributed.destroy_process_group()


def report(name: str, error: Exception, *, on_file_error: str = "") -> int:
    """Print the lines of an error and return its exit code; the arguments are the same as in ``run_command``."""
    # A wrong call is found by all processes alike.
    everywhere = not isinstance(error, UserError) or bool(error.one_process)
    return print_errors(name, _lines(error, on_file_error), _exit_code(error), everywhere=everywhere)


def _exit_code(error: Exception) -> int:
    if isinstance(error, Stopped):
        return 128 + error.signal
    return 2 if isinstance(error, UserError) and not error.retry else 1


def _lines(error: Exception, on_file_error: str) -> list[str]:
    if isinstance(error, SiteError):
        return [error.for_caller("--mix-sites")]
    if isinstance(error, UserError):
        return error.problems
    if isinstance(error, OSError) and error.errno in _FILE_ERRORS:
        path = error.filename2 or error.filename  # a failed copy has both, and writes the second
        where = f" {path}" if path else ""
        return [f"{_FILE_ERRORS[error.errno]}{where}: {error.strerror or error}; {on_file_error}"]
    if isinstance(error, MemoryError):
        return [f"out of memory: {one_line(error, 200) or 'try smaller images or batches'}"]
    return [f"{type(error).__name__}: {one_line(error, 400)} (--debug shows the traceback)"]


def flags_given_twice(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return a line per flag with a value that is given more than once, unless its values are collected."""
    seen: list[argparse.Action] = []
    twice: dict[str, None] = {}
    for word in words:
        flag = word.split("=")[0]
        action = parser._option_string_actions.get(flag)
        takes_value = action is not None and (action.nargs != 0 or isinstance(action, argparse.BooleanOptionalAction))
        if action is None or not takes_value or isinstance(action, argparse._AppendAction):
            continue
        if action in seen:
            twice[f"{flag} is given twice: the last one holds"] = None
        seen.append(action)
    return list(twice)


def empty_values(given: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return a line per flag with an empty value: as a path it would be the working directory."""
    return [
        f"--{name.replace('_', '-')} is empty: leave it out, or give a value"
        for name in names
        if getattr(given, name) == ""
    ]


def check_minimums(given: argparse.Namespace, minimums: Mapping[str, int]) -> list[str]:
    """Return a line per given number that is below its minimum."""
    values = {name: getattr(given, name) for name in minimums}
    return [
        f"--{name.replace('_', '-')} must be at least {minimums[name]}, got {value}"
        for name, value in values.items()
        if value is not None and value < minimums[name]
    ]


def check_threads(given: argparse.Namespace) -> list[str]:
    """Return a line if torch cannot start as many threads as ``--threads`` asks for."""
    problems = check_minimums(given, {"threads": 1})
    if given.threads is not None and given.threads > MOST_THREADS:
        problems.append(f"--threads must be at most {MOST_THREADS}, got {given.threads}")
    return problems


def print_errors(command: str, problems: Sequence[str], code: int, *, everywhere: bool = False) -> int:
    """Print one line per problem and return the exit code.

    Args:
        command: name of the command, the start of each line.
        problems: the problems; line breaks within one become spaces.
        code: the exit code.
        everywhere: print in every process, since an unexpected failure may differ; otherwise only in the first
            process per machine.
    """
    rank, local_rank = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
    if local_rank == 0 or everywhere:
        name = f"{command}, process {rank}" if rank else command
        try:
            for problem in problems:
                say(f"{name}: {one_line(problem)}", stream=sys.stderr)
        except OSError:  # their reader, terminal or disk is gone; the exit code remains
            discard(sys.stderr)
    return code
