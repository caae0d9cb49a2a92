"""Signals that ask a process to stop: which they are, handlers that hold for a block, and who leaves them to others.

What a signal means is up to the caller.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


def stop_signals() -> list[int]:
    """Return the signals that ask to stop: Ctrl-C, SIGTERM, a closed terminal, and the warning of a scheduler."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # nohup has SIGHUP ignored, and a shell without job control has SIGINT ignored in the background.
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def handling(numbers: Sequence[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call ``handler`` for these signals inside the context, and restore the handlers after it."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def holding_back() -> Iterator[None]:
    """Deliver signals that ask to stop after the block, and start child processes in it with these signals blocked.

    A child that is just being started can then not be hit before it has called ``leave_signals_to_parent``.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_parent(worker: int = 0) -> None:
    """Let a child process, such as a loader's, outlive a signal to its group: its parent decides when it ends.

    SIGTERM is also how a parent ends a child, so a SIGTERM from the parent is obeyed; if the system cannot say who sent
    it, it is left as it is. torch's workers end when their parent has ended.
    """
    for number in stop_signals():
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS and Windows
        signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM})
        threading.Thread(target=_end_if_parent_asks, daemon=True).start()


def _end_if_parent_asks() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
