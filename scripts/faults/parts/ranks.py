"""Failures of one of two processes: both must end within a minute, with the reason once, and the run can be resumed."""

import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from timm_patchup.data.images import MemoryImages
from timm_patchup.errors import DataError
from timm_patchup.runs.checkpoint import Checkpoints
from timm_patchup.training.learner import Learner
from timm_patchup.training.loop import Trainer

from ..tally import Tally
from ..timeline import Timeline
from ..trials import Kind, Training, resume_and_compare, scratch

MINUTE = 60.0
REASON = "the reason of the torture"


def _raising(error: Callable[[], Exception]) -> Callable[..., None]:
    def fail(*args: Any) -> None:
        raise error()

    return fail


def _ruin_weights(learner: Learner, *args: Any) -> None:
    with torch.no_grad():
        next(learner.unwrapped_model.parameters()).fill_(float("nan"))


def _kill_worker(*args: Any) -> None:
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)


# What fails: the method in which it does, what happens there, and the text that must be seen once.
FAULTS: dict[str, tuple[type, str, Callable[..., None], str]] = {
    "an unexpected error in the loop": (Learner, "update", _raising(lambda: RuntimeError(REASON)), REASON),
    "a full disk in the loop": (Learner, "update", _raising(lambda: OSError(28, REASON)), REASON),
    "an image that cannot be read": (
        MemoryImages,
        "__getitems__",
        _raising(lambda: DataError(REASON, retry=True)),
        REASON,
    ),
    "a full disk in a checkpoint": (Checkpoints, "save", _raising(lambda: OSError(28, REASON)), REASON),
    "a failed validation": (Trainer, "_evaluate", _raising(lambda: MemoryError(REASON)), REASON),
    "weights that are not finite": (Learner, "update", _ruin_weights, "the loss is not finite"),
    "a killed loader process": (Learner, "update", _kill_worker, "a loader process"),
}


def trials(count: int, chooser: random.Random) -> list[Tally]:
    tallies = {name: Tally(f"one of two processes: {name}") for name in FAULTS}
    for number in range(count):
        with scratch() as folder:
            name = list(FAULTS)[number % len(FAULTS)]
            _fail(tallies[name], name, chooser, folder)
    return list(tallies.values())


def _fail(tally: Tally, fault: str, chooser: random.Random, folder: Path) -> None:
    kind = Kind(2, 2 if fault == "a killed loader process" else 0)
    where, name, act, reason = FAULTS[fault]
    target = 0 if where is Checkpoints else chooser.randrange(2)  # only the first one writes
    call = chooser.randint(2, 4) if name != "_evaluate" else chooser.randint(1, 3)

    def prepare(rank: int, timeline: Timeline) -> None:
        if rank == target:
            _act_at(where, name, call, act)

    training = Training(folder, kind, prepare=prepare)
    codes, text = training.wait(MINUTE), training.errors()
    tally.trials += 1
    if None in codes or 0 in codes:
        tally.fail(f"process {target}, call {call}: codes {codes}: {text[-300:]}")
    elif text.count(reason) != 1 or "Traceback" in text:
        tally.fail(f"process {target}, call {call}: the reason {text.count(reason)} times: {text[-500:]}")
    elif not training.leaves_nobody():
        tally.fail("left a process behind")
    elif resume_and_compare(tally, folder, kind):
        tally.end("all ended within a minute, the reason once, resumed, 0 bits differ")


def _act_at(kind: type, name: str, call: int, act: Callable[..., None]) -> None:
    """Act before the given call of a method in this process."""
    original, seen = getattr(kind, name), 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == call:
            act(*args)
        return original(*args, **kwargs)

    setattr(kind, name, wrapped)
