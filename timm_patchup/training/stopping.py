"""Requests to stop: signals are remembered until the loop can write a checkpoint.

The loop asks between two updates; nothing is done inside a handler. What the processes agreed on is the loop's
business: nothing but a handler ever changes what is remembered here, so no signal is lost.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ..system.signals import handling, stop_signals

# A launcher that ends without passing its signal on leaves its children to stop by themselves.
_LAUNCHER_VARIABLES = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID")


class StopSignal:
    """Remembers the first request to stop until the loop is between two updates; a second one ends the process at once.

    Requests are SIGINT and SIGTERM, SIGHUP (unless nohup ignores it) and SIGUSR1, the warning of schedulers. The end
    of a launcher counts as SIGTERM.
    """

    def __init__(self) -> None:
        self._received = 0
        launched = any(name in os.environ for name in _LAUNCHER_VARIABLES)
        self._launcher = os.getppid() if launched else None

    @property
    def signal(self) -> int:
        """Number of the first signal, 0 if there was none."""
        if self._received == 0 and self._launcher is not None and os.getppid() != self._launcher:
            return int(signal.SIGTERM)
        return self._received

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals inside the context, and restore the handlers after it."""
        with handling(stop_signals(), self._remember):
            yield

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._received = self._received or number
        # By the operating system: the second one ends a process that is stuck in a call, too.
        for listened in stop_signals():
            signal.signal(listened, signal.SIG_DFL)
