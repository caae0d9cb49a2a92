"""What a training has reached, in memory that its forks share with the torture.

Every call of a method in ``POINTS`` is an event, from the first update on. A trial that strikes at an event hits the
training and not its start or its end, however loaded the machine is.
"""

import mmap
import os
import random
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accelerate import Accelerator

from timm_patchup.runs.checkpoint import Checkpoints
from timm_patchup.runs.folder import RunFolder
from timm_patchup.training.learner import Learner
from timm_patchup.training.loop import Trainer

POINTS: list[tuple[type, str]] = [
    (Accelerator, "gather"),
    (Learner, "update"),
    (Learner, "state_dict"),
    (Trainer, "_evaluate"),
    (Trainer, "_asked_to_stop"),
    (Trainer, "_end_epoch"),
    (Checkpoints, "save"),
    (Checkpoints, "save_best"),
    (RunFolder, "write_summary"),
    (RunFolder, "copy_in"),
    (RunFolder, "write_results"),
]
_HEAD, _EVENT, _EVENTS = struct.Struct("qq"), struct.Struct("dq"), 2000


@dataclass(frozen=True)
class Event:
    """A call of a method."""

    seconds: float  # of the system's monotonic clock
    point: int  # index in POINTS


class Timeline:
    """The events of one process of a training."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEAD.size + _EVENT.size * _EVENTS)

    @property
    def count(self) -> int:
        return _HEAD.unpack_from(self._memory)[0]

    @property
    def last_look(self) -> int:
        """Number of events before the loop looks for the last time whether to stop, 0 while it has not."""
        return _HEAD.unpack_from(self._memory)[1]

    def events(self) -> list[Event]:
        return [Event(*_EVENT.unpack_from(self._memory, _HEAD.size + _EVENT.size * n)) for n in range(self.count)]

    def add(self, point: int, *, is_last_look: bool) -> None:
        count = self.count
        _EVENT.pack_into(self._memory, _HEAD.size + _EVENT.size * count, time.monotonic(), point)
        _HEAD.pack_into(self._memory, 0, count + 1, count if is_last_look else self.last_look)

    def watch(self, at: Callable[[int, bool], None] = lambda event, after: None) -> None:
        """Record the events of this process; call ``at`` before and after each, with its number."""
        for point, (kind, name) in enumerate(POINTS):
            _wrap(self, point, kind, name, at)


def _wrap(timeline: Timeline, point: int, kind: type, name: str, at: Callable[[int, bool], None]) -> None:
    original: Callable[..., Any] = getattr(kind, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # not yet listening, or already hit
            return original(*args, **kwargs)
        number = timeline.count
        is_last_look = name == "_asked_to_stop" and args[0].position.epoch == args[0].num_epochs
        timeline.add(point, is_last_look=is_last_look)
        at(number, False)
        result = original(*args, **kwargs)
        at(number, True)
        return result

    setattr(kind, name, wrapped)


def choose_event(timeline: Timeline, chooser: random.Random, *, before: int | None = None) -> int:
    """Return the number of an event: every kind is as likely as any other, and then every call of it."""
    events = timeline.events()[:before]
    point = chooser.choice(sorted({event.point for event in events}))
    return chooser.choice([number for number, event in enumerate(events) if event.point == point])


def signal_at(timeline: Timeline, event: int, *, after: bool, number: int) -> None:
    """Let this process signal itself before or after an event."""

    def at(reached: int, now_after: bool) -> None:
        if (reached, now_after) == (event, after):
            os.kill(os.getpid(), number)

    timeline.watch(at)
