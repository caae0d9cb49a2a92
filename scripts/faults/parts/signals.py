"""Signals that ask to stop, sent by the process to itself at an event, or from outside at a random moment.

Every one that arrives before the loop looks for the last time must stop the training with a checkpoint. One that comes
later makes the trial void: another one takes its place.
"""

import random
import signal
from pathlib import Path

from ..tally import Tally
from ..timeline import Timeline, choose_event, signal_at
from ..trials import KINDS, Kind, Training, resume_and_compare, scratch, undisturbed

NUMBERS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
STOPPED, VOID = "stopped with a checkpoint, resumed, 0 bits differ", "void: after the last look"


def trials(count: int, chooser: random.Random) -> list[Tally]:
    rows = [(kind, injected) for kind in KINDS for injected in (True, False)]
    tallies = []
    for number, (kind, injected) in enumerate(rows):
        how = "injected at an event" if injected else "from outside at a random moment"
        tally = Tally(f"signal {how}, {kind}")
        tallies.append(tally)
        while tally.trials < count // len(rows) + (number < count % len(rows)):
            with scratch() as folder:
                (_injected if injected else _from_outside)(tally, kind, chooser, folder)
    return tallies


def _injected(tally: Tally, kind: Kind, chooser: random.Random, folder: Path) -> None:
    reference, number = undisturbed(kind), chooser.choice(NUMBERS)
    target, after = chooser.randrange(kind.processes), chooser.random() < 0.5
    timeline = reference.timelines[target]
    event = choose_event(timeline, chooser, before=timeline.last_look)

    def prepare(rank: int, timeline: Timeline) -> None:
        if rank == target:
            signal_at(timeline, event, after=after, number=number)

    _end(tally, Training(folder, kind, prepare=prepare), number)


def _from_outside(tally: Tally, kind: Kind, chooser: random.Random, folder: Path) -> None:
    reference, number = undisturbed(kind), chooser.choice(NUMBERS)
    event, delay = reference.random_moment(chooser, before=reference.last_look)
    group, everyone = chooser.random() < 0.7, chooser.random() < 0.5
    training = Training(folder, kind)
    if training.reach(event, delay=delay):
        training.signal(number, chooser, everyone=everyone, group=group)
    if any(timeline.last_look for timeline in training.timelines):
        training.wait()
        tally.end(VOID)
        return
    _end(tally, training, number)


def _end(tally: Tally, training: Training, number: signal.Signals) -> None:
    tally.trials += 1
    codes, text, name = training.wait(), training.errors(), number.name
    if None in codes:
        tally.fail(f"hung after {name}: {text[-300:]}")
    elif "Traceback" in text:
        tally.fail(f"traceback after {name}: {text[-300:]}")
    elif set(codes) != {128 + number} or text.count(f"stopped by {name}; checkpoint step-") != 1:
        tally.fail(f"lost: {name}, codes {codes}: {text[-300:]}")
    elif not training.leaves_nobody():
        tally.fail(f"left a process behind after {name}")
    elif resume_and_compare(tally, training.folder, training.kind):
        tally.end(STOPPED)
