"""Requests to stop: signals are remembered until the loop can write a checkpoint.

The loop asks between two updates; nothing is done inside a handler.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ..system.signals import handling


class StopSignal:
    """Remembers SIGINT and SIGTERM until the loop is between two updates; a second one stops the process at once.

    Attributes:
        signal: number of the signal, 0 if there was none.
    """

    def __init__(self) -> None:
        self.signal = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals inside the context, and restore the handlers after it."""
        with handling([signal.SIGINT, signal.SIGTERM], self._remember):
            yield

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(number, signal.SIG_DFL)
