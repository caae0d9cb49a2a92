"""Runs the commands of a study in processes of their own, so many at a time, and stops them so that they can go on.

The children have sessions of their own: Ctrl-C reaches them once, from here, and each writes a checkpoint before it
ends. A second Ctrl-C kills them.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Job:
    """Commands to run one after the other, and the file for all they say.

    Attributes:
        busy: whether someone else is at it, such as the children of a study that was killed; then it waits.
    """

    name: str
    commands: Sequence[Sequence[str]]
    log: Path
    busy: Callable[[], bool] = lambda: False


@dataclass
class Outcome:
    """How the jobs ended: names of those that failed, and whether a signal stopped them."""

    failed: list[str] = field(default_factory=list)
    signal: int = 0


@dataclass
class _Child:
    job: Job
    slot: int
    started: float
    process: subprocess.Popen[bytes]
    position: int = 0


class Runner:
    """Runs jobs, ``jobs`` at a time.

    Args:
        jobs: number of jobs at a time, at least 1.
        devices: names of GPUs for ``CUDA_VISIBLE_DEVICES``, one for each job in turn; empty to leave it alone.
        ended: called with each job that ended, its exit code and its seconds.
    """

    def __init__(self, jobs: int, devices: Sequence[str], ended: Callable[[Job, int, float], None]) -> None:
        self.jobs, self.devices, self.ended = jobs, list(devices), ended
        self._signals: list[int] = []
        self._told: set[str] = set()

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """Run all jobs to their ends, or stop the running ones at a signal."""
        outcome = Outcome()
        waiting, running = list(jobs), list[_Child]()
        with self._listening():
            try:
                while (waiting and not self._signals) or running:
                    while waiting and len(running) < self.jobs and not self._signals:
                        job = self._next_of(waiting)
                        if job is None:
                            break
                        waiting.remove(job)
                        running.append(self._start(job, self._free_slot(running)))
                    if self._signals and not outcome.signal:
                        outcome.signal = self._signals[0]
                        _tell(running, signal.SIGTERM)
                    if len(self._signals) > 1:
                        _tell(running, signal.SIGKILL)
                    running = [child for child in running if not self._has_ended(child, outcome)]
                    time.sleep(_POLL_SECONDS if running or waiting else 0)
            except BaseException:
                _tell(running, signal.SIGTERM)
                raise
        if self._signals:  # one may have come when nothing was running
            outcome.signal = self._signals[0]
        return outcome

    def _next_of(self, waiting: Sequence[Job]) -> Job | None:
        """Return the first job that nobody else is at, None where all must wait."""
        for job in waiting:
            if not job.busy():
                return job
            if job.name not in self._told:
                self._told.add(job.name)
                print(f"{job.name} waits: another process is training it", flush=True)
        return None

    def _free_slot(self, running: Sequence[_Child]) -> int:
        return min(set(range(self.jobs)) - {child.slot for child in running})

    def _start(self, job: Job, slot: int) -> _Child:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        return _Child(job, slot, time.monotonic(), self._open(job, 0, slot))

    def _open(self, job: Job, position: int, slot: int) -> subprocess.Popen[bytes]:
        """Start one command, with this interpreter for the word ``python``."""
        program, *arguments = job.commands[position]
        words = [sys.executable if program == "python" else program, *arguments]
        environment = dict(os.environ)
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        with job.log.open("ab") as log:
            log.write(f"$ {shlex.join(job.commands[position])}\n".encode())
            log.flush()
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def _has_ended(self, child: _Child, outcome: Outcome) -> bool:
        """Whether a job is at its end; starts its next command where there is one."""
        code = child.process.poll()
        if code is None:
            return False
        if code == 0 and child.position + 1 < len(child.job.commands) and not self._signals:
            child.position += 1
            child.process = self._open(child.job, child.position, child.slot)
            return False
        complete = child.position + 1 == len(child.job.commands)
        if code == 0 and not complete:
            return True  # stopped between two commands
        if code and self._signals:
            return True  # stopped, not failed
        if code:
            outcome.failed.append(child.job.name)
        self.ended(child.job, code, time.monotonic() - child.started)
        return True

    @contextmanager
    def _listening(self) -> Iterator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # not under nohup
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._remember) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)


def _tell(children: Sequence[_Child], number: signal.Signals) -> None:
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(number)


def last_line(log: Path) -> str:
    """Return the last thing a log says, for the line about a failed run."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
