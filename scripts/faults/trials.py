"""Trainings to disturb, and the comparison that every one of them must pass: resumed, it ends bit for bit as one that
nothing has disturbed.
"""

import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from timm_patchup.system.files import checksum

from .forked import SECONDS, Forked
from .tally import Tally
from .timeline import Timeline, choose_event

RUN = ["--limit", "60", "--batch-size", "12", "--model", "test_resnet", "--epochs", "2", "--checkpoint-steps", "2"]
RUN += ["--threads", "1", "--experiment", "a"]
SAME = ("model.safetensors", "summary.csv", "results.json")


class Kind(NamedTuple):
    """How a training is run."""

    processes: int
    workers: int

    def __str__(self) -> str:
        processes = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return f"{processes}, {self.workers or 'no'} workers"


KINDS = [Kind(1, 0), Kind(1, 2), Kind(2, 0), Kind(2, 2)]


class Training:
    """A training in one fork or several.

    Args:
        folder: its run is in ``folder/a``.
        kind: processes and workers.
        words: more flags.
        prepare: called in each fork, with its rank and its timeline, which has to be watched to be filled.
    """

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        words: Sequence[object] = (),
        *,
        prepare: Callable[[int, Timeline], None] = lambda rank, timeline: timeline.watch(),
    ) -> None:
        self.folder, self.run, self.kind = folder, folder / "a", kind
        flags = [*RUN, "--output", folder, "--workers", kind.workers, *words]
        self.timelines = [Timeline() for _ in range(kind.processes)]
        variables = _variables(kind.processes)
        self.forks = [
            Forked(
                "train.py",
                flags,
                folder,
                prepare=lambda rank=rank: prepare(rank, self.timelines[rank]),  # type: ignore[misc]
                variables=variables[rank],
            )
            for rank in range(kind.processes)
        ]

    def wait(self, seconds: float = SECONDS) -> list[int | None]:
        """Return the exit codes, None for a process that hangs."""
        end = time.monotonic() + seconds
        return [fork.wait(max(0.0, end - time.monotonic())) for fork in self.forks]

    def reach(self, event: int, *, rank: int = 0, delay: float = 0.0) -> bool:
        """Wait until a process has reached an event, and some seconds more; return whether the training ran on."""
        end = time.monotonic() + SECONDS
        while self.timelines[rank].count <= event:
            if any(fork.poll() is not None for fork in self.forks) or time.monotonic() > end:
                return False
            time.sleep(0.0005)
        time.sleep(delay)
        return True

    def signal(self, number: int, chooser: random.Random, *, everyone: bool, group: bool) -> None:
        """Send a signal to all processes or to a random one, with its loader processes or to it alone."""
        for fork in self.forks if everyone else [chooser.choice(self.forks)]:
            fork.signal(number, group=group)

    def errors(self) -> str:
        return "".join(fork.errors() for fork in self.forks)

    def leaves_nobody(self) -> bool:
        return all(fork.leaves_nobody() for fork in self.forks)

    def digests(self) -> dict[str, str]:
        return {name: checksum(self.run / name) for name in SAME if (self.run / name).is_file()}


def _variables(processes: int) -> list[dict[str, str]]:
    """Return the environment of each process, as a launcher sets it."""
    if processes == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **shared} for rank in range(processes)]


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder that is removed afterwards, in memory if there is a file system for that."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="torture-", dir=shared if os.access(shared, os.W_OK) else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Reference:
    """A training that nothing has disturbed."""

    digests: dict[str, str]
    timelines: list[Timeline]

    def random_moment(self, chooser: random.Random, *, before: int | None = None) -> tuple[int, float]:
        """Return an event of the first process, and seconds after it: fewer than pass until the next one."""
        event, events = choose_event(self.timelines[0], chooser, before=before), self.timelines[0].events()
        gap = events[event + 1].seconds - events[event].seconds if event + 1 < len(events) else 0.1
        return event, chooser.random() * gap

    @property
    def last_look(self) -> int:
        return min(timeline.last_look for timeline in self.timelines)


@cache
def undisturbed(kind: Kind) -> Reference:
    """Train without disturbance."""
    with scratch() as folder:
        training = Training(folder, kind)
        codes = training.wait()
        assert codes == [0] * kind.processes, training.errors()
        digests = training.digests()
        assert len(digests) == len(SAME)
        return Reference(digests, training.timelines)


def resume_and_compare(tally: Tally, folder: Path, kind: Kind) -> bool:
    """Resume a training and compare its files; return whether they are the same."""
    training = Training(folder, kind, ["--resume"])
    codes, found, expected = training.wait(), training.digests(), undisturbed(kind).digests
    if codes != [0] * kind.processes or "Traceback" in training.errors():
        tally.fail(f"no resume: codes {codes}: {training.errors()[-300:]}")
    elif found != expected:
        tally.fail(f"differs: {[name for name in SAME if found.get(name) != expected[name]]}")
    else:
        return True
    return False
