"""Ways a run ends before its end: a signal, or a loss that is no number. Each leaves a checkpoint to go on from."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal:
    """Remembers SIGINT and SIGTERM until the loop is between two updates; a second one stops at once."""

    def __init__(self) -> None:
        self.signal = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals inside, and leave the handlers as they were."""
        before = {number: signal.signal(number, self._remember) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(number, signal.SIG_DFL)
