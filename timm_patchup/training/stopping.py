"""Ways a run ends before its end: a signal, or a loss that is no number. Each leaves a checkpoint to go on from."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class RunError(RuntimeError):
    """A run that ended early: one line for the user and an exit code."""

    code = 1


class Stopped(RunError):
    """Ctrl-C or a request of the scheduler, after the checkpoint was written."""

    def __init__(self, number: int, checkpoint: str) -> None:
        self.code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}; checkpoint {checkpoint}: go on with --resume")


class NonFinite(RunError):
    """The loss became infinite or not a number."""

    def __init__(self, update: int, checkpoint: str) -> None:
        super().__init__(
            f"the loss is not finite at update {update}; last good checkpoint: {checkpoint}. Start anew with a lower "
            f"--lr, with --warmup-epochs or --clip-grad, or without --amp: a resumed run keeps its recipe"
        )


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
