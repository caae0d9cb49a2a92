"""What every command of the package shares: flags whose errors are one line, and how a command complains.

Only what a user meets on the command line belongs here; what a single command does is in its own ``cli.py``.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from .checks import nearest


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage of all flags before it."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(complain(self.prog, [message], 2))

    def read(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Read the flags and return them with a line for each word that is none, to be shown with other problems."""
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


def too_low(given: argparse.Namespace, lowest: Mapping[str, int]) -> list[str]:
    """Return a line for each number that was given and is below its lowest value."""
    values = {name: getattr(given, name) for name in lowest}
    return [
        f"--{name.replace('_', '-')} must be at least {lowest[name]}, got {value}"
        for name, value in values.items()
        if value is not None and value < lowest[name]
    ]


def complain(command: str, problems: Sequence[str], code: int, *, everywhere: bool = False) -> int:
    """Print each problem on a line of its own and return the exit code.

    Args:
        command: its name, the start of each line.
        problems: what is wrong; line breaks within a problem become spaces.
        code: the exit code.
        everywhere: print in every process, for what is unforeseen may differ; otherwise the first of a machine speaks
            for all that run there.
    """
    rank, local_rank = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
    if local_rank == 0 or everywhere:
        name = f"{command}, process {rank}" if rank else command
        with suppress(BrokenPipeError):  # whoever read the complaints is gone; the code still tells
            for problem in problems:
                print(f"{name}: {' '.join(problem.split())}", file=sys.stderr, flush=True)
    return code
