"""The progress of a run: a bar on a terminal, a line per minute elsewhere, and one line per epoch.

The loop reports what happened; what is shown of it, and when, is decided here.
"""

import sys
import time
from typing import Any

from tqdm import tqdm

from ..runs.folder import EpochRow
from ..system.output import outliving_terminal, say

_LINE_SECONDS = 60.0


class Progress:
    """Progress of a run on the main process; silent on the others."""

    def __init__(self, *, enabled: bool, num_epochs: int, updates: int, batch_size: int, interval: int) -> None:
        self.enabled, self.num_epochs, self.updates = enabled, num_epochs, updates
        self.batch_size, self.interval = batch_size, interval
        self.terminal = enabled and sys.stderr.isatty()
        self._bar: Any = None
        self._epoch_seconds: list[float] = []
        self._waited, self._seconds, self._done = 0.0, 0.0, 0
        self._epoch_start = self._last_line = time.perf_counter()

    def print_main(self, text: str) -> None:
        """Print a line on the main process."""
        if self.enabled:
            with outliving_terminal():
                say(text)

    def begin_epoch(self, epoch: int, update: int) -> None:
        self._epoch_start = time.perf_counter()
        self._waited, self._seconds, self._done = 0.0, 0.0, 0
        if self.terminal:
            with outliving_terminal():
                self._bar = tqdm(
                    total=self.updates,
                    initial=update,
                    desc=f"epoch {epoch + 1}/{self.num_epochs}",
                    unit="batch",
                    leave=False,
                )

    def wants_loss(self, update: int) -> bool:
        """Return whether the loss will be shown: reading it waits for the device."""
        if not self.enabled or update % self.interval:
            return False
        return self.terminal or time.perf_counter() - self._last_line > _LINE_SECONDS

    def advance(self, *, waited: float, seconds: float, update: int, loss: float | None) -> None:
        """Count one update and the seconds it took, ``waited`` of them for data; show the loss if there is one."""
        self._waited += waited
        self._seconds += seconds
        self._done += 1
        if self._bar is not None:
            with outliving_terminal():
                self._bar.update(1)
        if loss is None:
            return
        speed = self.images_per_second
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}, {speed:.0f} images/s", refresh=False)
        else:
            self._last_line = time.perf_counter()
            self.print_main(f"  update {update}/{self.updates}  loss {loss:.4f}  {speed:.0f} images/s")

    @property
    def images_per_second(self) -> float:
        return self.batch_size * self._done / self._seconds if self._seconds else 0.0

    @property
    def waited_fraction(self) -> float:
        return self._waited / self._seconds if self._seconds else 0.0

    def end_epoch(self, row: EpochRow, *, best: bool) -> None:
        """Print the line of an epoch, with a star if it is the best so far."""
        now = time.perf_counter()
        self.close()
        self._last_line = now
        self._epoch_seconds.append(now - self._epoch_start)
        epoch = int(row["epoch"] or 0)
        recent = self._epoch_seconds[-20:]
        seconds_left = (self.num_epochs - epoch) * sum(recent) / len(recent)
        parts = [f"epoch {epoch:>{len(str(self.num_epochs))}}/{self.num_epochs}", f"loss {row['train_loss']:.4f}"]
        if row["val_loss"] is not None:
            parts.append(f"val error {row['val_error']:.2f} nll {row['val_loss']:.4f}{' *' if best else '  '}")
        parts += [f"lr {row['lr']:.2g}", f"{self.images_per_second:.0f} images/s"]
        parts += [f"data wait {100 * self.waited_fraction:.0f}%", f"ETA {_duration(seconds_left)}"]
        self.print_main("  ".join(parts))

    def close(self) -> None:
        if self._bar is not None:
            with outliving_terminal():
                self._bar.close()
            self._bar = None


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
