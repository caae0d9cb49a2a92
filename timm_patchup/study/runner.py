"""Run the commands of a study as child processes, several at a time, and stop them so that they can be resumed.

Each child has its own session, so that Ctrl-C reaches it only through the runner: each writes a checkpoint and ends. A
second Ctrl-C kills them.
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

from ..system.files import open_to_append
from ..system.output import say
from ..system.signals import handling, stop_signals

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Job:
    """Commands to run one after the other, and the file for their output.

    Attributes:
        busy: whether another process runs it, such as a child of a killed study; then the job waits.
    """

    name: str
    commands: Sequence[Sequence[str]]
    log: Path
    busy: Callable[[], bool] = lambda: False


@dataclass
class Outcome:
    """How the jobs ended: names of the failed ones, and the number of the signal that stopped them, 0 if none did."""

    failed: list[str] = field(default_factory=list)
    signal: int = 0


@dataclass
class _Child:
    job: Job
    slot: int
    started: float
    process: subprocess.Popen[bytes]
    position: int = 0
    cpu_seconds: float = 0.0


class Runner:
    """Runs several jobs at a time.

    Args:
        jobs: number of jobs at a time, at least 1.
        devices: GPUs for ``CUDA_VISIBLE_DEVICES``, one per job in turn; empty to leave the variable alone.
        ended: called with each ended job, its exit code, its seconds and its seconds of CPU time.
    """

    def __init__(self, jobs: int, devices: Sequence[str], ended: Callable[[Job, int, float, float], None]) -> None:
        self.jobs, self.devices, self.ended = jobs, list(devices), ended
        self._signals: list[int] = []
        self._announced: set[str] = set()

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """Run all jobs, or stop the running ones on a signal."""
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
                        _send(running, signal.SIGTERM)
                    if len(self._signals) > 1:
                        _send(running, signal.SIGKILL)
                    running = [child for child in running if not self._has_ended(child, outcome)]
                    time.sleep(_POLL_SECONDS if running or waiting else 0)
            except BaseException:
                _send(running, signal.SIGTERM)
                raise
        if self._signals:  # one may have arrived when nothing was running
            outcome.signal = self._signals[0]
        return outcome

    def _next_of(self, waiting: Sequence[Job]) -> Job | None:
        """Return the first job that no other process runs, None if all must wait."""
        for job in waiting:
            if not job.busy():
                return job
            if job.name not in self._announced:
                self._announced.add(job.name)
                say(f"{job.name}: waiting, another process is training it")
        return None

    def _free_slot(self, running: Sequence[_Child]) -> int:
        return min(set(range(self.jobs)) - {child.slot for child in running})

    def _start(self, job: Job, slot: int) -> _Child:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        return _Child(job, slot, time.monotonic(), self._open(job, 0, slot))

    def _open(self, job: Job, position: int, slot: int) -> subprocess.Popen[bytes]:
        """Start one command; the word ``python`` is this interpreter."""
        program, *arguments = job.commands[position]
        words = [sys.executable if program == "python" else program, *arguments]
        environment = dict(os.environ)
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        with open_to_append(job.log) as log:
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
        """Return whether a job has ended; start its next command if there is one."""
        before = os.times()
        code = child.process.poll()
        if code is None:
            return False
        after = os.times()  # the time of children counts once they have ended
        child.cpu_seconds += after.children_user - before.children_user + after.children_system - before.children_system
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
        self.ended(child.job, code, time.monotonic() - child.started, child.cpu_seconds)
        return True

    @contextmanager
    def _listening(self) -> Iterator[None]:
        with handling(stop_signals(), self._remember):
            yield

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)


def _send(children: Sequence[_Child], number: signal.Signals) -> None:
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(number)


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
