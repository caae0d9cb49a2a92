"""Loader processes: the memory in which they hand over batches, and what each of them is reading, so that the death of
one can be reported with the file's name.

An error that a loader process raises comes back as a value (``FailedBatch``); what kills the process (lack of memory, a
crash in a decoder) leaves only the note it made in shared memory before reading the sample.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import DataError
from ..system.signals import leave_signals_to_parent

# Batches that each loader process makes ahead. They are bytes, so four take as much memory as one of floats.
PREFETCH = 4
_NOTHING = -1
# In a loader process: its number and the sample it is reading, and its memory for batches. None elsewhere.
_own_note: np.ndarray | None = None
_own_buffers: "SharedBuffers | None" = None


def note_sample(sample: int) -> None:
    """Note which sample this loader process is about to read."""
    if _own_note is not None:
        _own_note[1] = sample


class SharedBuffers:
    """Memory that a loader process shares with its parent, used in turn for its batches.

    Fresh shared memory comes from the system page by page, which takes a tenth of the time of decoding. A loader has at
    most ``PREFETCH`` batches of a process on the way, and its parent is done with one when it asks for the next: with
    two buffers more than that, none is written while it is read.
    """

    def __init__(self, count: int = PREFETCH + 2) -> None:
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * count
        self._next = 0

    def stack(self, images: Sequence[Tensor]) -> Tensor:
        """Return uint8 images (C, H, W) as one tensor (B, C, H, W) in the next buffer."""
        size = len(images) * images[0].numel()
        if len(self._buffers[self._next]) < size:
            self._buffers[self._next] = torch.empty(size, dtype=torch.uint8).share_memory_()
        out = self._buffers[self._next][:size].view(len(images), *images[0].shape)
        self._next = (self._next + 1) % len(self._buffers)
        return torch.stack(list(images), out=out)


def stack_images(images: Sequence[Tensor]) -> Tensor:
    """Stack the images of a batch, in a loader process into memory that its parent can read."""
    return torch.stack(list(images)) if _own_buffers is None else _own_buffers.stack(images)


class FailedBatch(NamedTuple):
    """Takes the place of a batch that cannot be loaded."""

    error: DataError


class Notes:
    """What the loader processes of one loader are reading.

    Args:
        workers: their number.
        describe: returns the name of a sample.
    """

    def __init__(self, workers: int, describe: Callable[[int], str]) -> None:
        self._table = torch.full((workers, 2), _NOTHING).share_memory_()
        self._describe = describe
        _open_notes.add(self)

    def start_worker(self, worker: int) -> None:
        """Begin the notes of a loader process, and leave signals and errors to its parent; called in that process."""
        global _own_note, _own_buffers
        leave_signals_to_parent(worker)
        sys.excepthook = _print_unless_parent_left
        _own_note = self._table[worker].numpy()
        _own_note[0] = os.getpid()
        _own_buffers = SharedBuffers()

    def find_dead(self) -> str | None:
        """Return a line about a loader process that has died, None if all are alive."""
        alive = {process.pid for process in multiprocessing.active_children()}
        for pid, sample in self._table.tolist():
            if pid != _NOTHING and pid not in alive:
                reading = "" if sample == _NOTHING else f" while reading {self._describe(sample)}"
                return (
                    f"a loader process (pid {pid}) died{reading}: resume the run (--resume) or repeat the call, with "
                    f"fewer workers if memory ran out; if it dies there again, replace or remove that image"
                )
        return None


_open_notes: WeakSet[Notes] = WeakSet()


def _print_unless_parent_left(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error of a loader process, unless its parent closed a connection while it fetched a batch.

    It does so if torch's handler for a dead process interrupts it; what happened is then reported by the parent. The
    thread of multiprocessing that hands over memory prints this error through ``sys.excepthook``.
    """
    if not isinstance(error, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)


class WorkerDataset(Dataset):
    """A dataset as loader processes see it: an error of the data is returned, so that its line arrives unaltered."""

    def __init__(self, images: Any) -> None:
        self.images = images

    def __getitems__(self, keys: list[Any]) -> Any:
        try:
            return self.images.__getitems__(keys)
        except DataError as error:
            return FailedBatch(error)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use a single thread on the CPU; more would wait for cores that loader processes occupy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def naming_dead_workers() -> Iterator[None]:
    """Turn torch's error about a dead loader process into one that names the sample it was reading.

    torch raises it from a signal handler, so it can surface anywhere between two batches; if the process dies while it
    hands over a batch, the connection breaks instead.

    Raises:
        DataError: a loader process has died.
    """
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        # A broken connection is noticed before the system has the process among the dead.
        for _ in range(20 if isinstance(error, (ConnectionError, EOFError)) else 1):
            line = None
            with suppress(RuntimeError):  # torch's handler may interrupt this, too
                line = next((found for notes in list(_open_notes) if (found := notes.find_dead())), None)
                if line is None:
                    time.sleep(0.05)
            if line is not None:
                raise DataError(line, retry=True) from error
        raise
