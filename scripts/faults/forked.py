"""Commands of the package in forks of this process, which has everything imported, so that a trial takes seconds.

A command has its own session, like one that a shell with job control started. Its output goes to pipes, which no
full disk affects.
"""

import fcntl
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# What commands import as late as possible is imported here, before the forks.
import datasets as _datasets  # noqa: F401
import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401

from timm_patchup import launch
from timm_patchup.cli import evaluate, predict, push, study, train
from timm_patchup.evaluation import run as _evaluation_run  # noqa: F401
from timm_patchup.report import curves as _curves  # noqa: F401
from timm_patchup.training import run as _training_run  # noqa: F401

COMMANDS = {
    "train.py": train.main,
    "evaluate.py": evaluate.main,
    "push_to_hub.py": push.main,
    "study.py": study.main,
    "predict.py": predict.main,
    "timm-patchup": launch.main,
}
_PIPE_SIZE = 1 << 20  # more than any of them writes
SECONDS = 120.0  # a command that takes longer hangs
Prepare = Callable[[], None]


def _nothing() -> None:
    pass


class Forked:
    """A command in a fork.

    Args:
        command: one of ``COMMANDS``.
        words: its flags.
        folder: where it runs.
        prepare: called in the fork before the command.
        variables: of its environment.
    """

    def __init__(
        self,
        command: str,
        words: Sequence[object],
        folder: Path,
        *,
        prepare: Prepare = _nothing,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.code: int | None = None
        self._pipes, self._texts = [os.pipe(), os.pipe()], [b"", b""]
        for reader, _ in self._pipes:
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
            os.set_blocking(reader, False)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(command, [str(word) for word in words], folder, prepare, variables or {})
        for _, writer in self._pipes:
            os.close(writer)

    def _become(
        self, command: str, words: list[str], folder: Path, prepare: Prepare, variables: Mapping[str, str]
    ) -> None:
        code = 70
        try:
            os.setsid()
            for target, (reader, writer) in enumerate(self._pipes, start=1):
                os.close(reader)
                os.dup2(writer, target)
            os.environ.update(variables)
            os.chdir(folder)
            prepare()
            COMMANDS[command](words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            _end_workers()
            os._exit(code)

    def poll(self) -> int | None:
        """Return the exit code, None while the command runs."""
        if self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float = SECONDS) -> int | None:
        """Return the exit code, None if the command hangs; then it is killed."""
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        if self.code is None:
            self.signal(signal.SIGKILL, group=True)
            os.waitpid(self.pid, 0)
        return self.code

    def signal(self, number: int, *, group: bool) -> None:
        """Send a signal to the command, or to its children, too."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number) if group else os.kill(self.pid, number)

    def leaves_nobody(self, seconds: float = 20.0) -> bool:
        """Return whether all children of an ended command end, too."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.05)
        self.signal(signal.SIGKILL, group=True)
        return False

    def errors(self) -> str:
        """Return what the command has written to standard error."""
        return self._read(1)

    def output(self) -> str:
        """Return what the command has written to standard output."""
        return self._read(0)

    def _read(self, number: int) -> str:
        with suppress(BlockingIOError):
            while part := os.read(self._pipes[number][0], _PIPE_SIZE):
                self._texts[number] += part
        return self._texts[number].decode(errors="replace")

    def __del__(self) -> None:
        for reader, _ in self._pipes:
            os.close(reader)


def _end_workers() -> None:
    """End loader processes as an interpreter that exits does."""
    for child in multiprocessing.active_children():
        child.terminate()
        child.join(5)


def are_lines(text: str, command: str, code: int | None) -> bool:
    """Return whether standard error has only lines of the command: one or more if it has failed, and no traceback."""
    lines = [line for line in text.splitlines() if line.strip() and "UserWarning" not in line and line[0] != " "]
    own = [line for line in lines if line.startswith((f"{command}: ", f"{command}, process "))]
    return len(own) == len(lines) and (bool(own) or not code) and "--debug shows" not in text
