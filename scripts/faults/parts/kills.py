"""``kill -9`` at a random moment: of all processes with their workers, of one with them, or of one alone.

Those that are left must end by themselves within a minute. A training that was finished before makes the trial void.
"""

import random
import signal
from pathlib import Path

from ..tally import Tally
from ..trials import KINDS, Kind, Training, resume_and_compare, scratch, undisturbed

MINUTE = 60.0
KILLED, VOID = "killed, resumed, 0 bits differ", "void: finished before"


def trials(count: int, chooser: random.Random) -> list[Tally]:
    tallies = [Tally(f"kill -9 at a random moment, {kind}") for kind in KINDS]
    for number, (tally, kind) in enumerate(zip(tallies, KINDS)):
        while tally.trials < count // len(KINDS) + (number < count % len(KINDS)):
            with scratch() as folder:
                _kill(tally, kind, chooser, folder)
    return tallies


def _kill(tally: Tally, kind: Kind, chooser: random.Random, folder: Path) -> None:
    event, delay = undisturbed(kind).random_moment(chooser)
    everyone, group = chooser.random() < 0.5, chooser.random() < 0.5
    training = Training(folder, kind)
    training.reach(event, delay=delay)
    training.signal(signal.SIGKILL, chooser, everyone=everyone, group=group)
    codes, text = training.wait(MINUTE), training.errors()
    if -signal.SIGKILL not in codes:
        tally.end(VOID)
        return
    tally.trials += 1
    if None in codes:
        tally.fail(f"hung for a minute after the end of another process: {text[-300:]}")
    elif "Traceback" in text:
        tally.fail(f"traceback: {text[-300:]}")
    elif not training.leaves_nobody():
        tally.fail("left a process behind")
    elif resume_and_compare(tally, folder, kind):
        tally.end(KILLED)
