"""A disk that is full after some events: a limit on the size of files, which the next larger one meets.

The training must end with one line, and lose nothing once there is space again.
"""

import random
import resource
import signal
from pathlib import Path

from ..forked import are_lines
from ..tally import Tally
from ..timeline import Timeline, choose_event
from ..trials import Kind, Training, resume_and_compare, scratch, undisturbed

LIMITS = [0, 1000, 20_000, 200_000]  # bytes
ONE_LINE, VOID = "one line, resumed, 0 bits differ", "void: had enough space"


def trials(count: int, chooser: random.Random) -> list[Tally]:
    tallies = [Tally(f"full disk, {kind}") for kind in (Kind(1, 0), Kind(2, 0))]
    for tally, kind in zip(tallies, (Kind(1, 0), Kind(2, 0))):
        while tally.trials < count // 2:
            with scratch() as folder:
                _fill(tally, kind, chooser, folder)
    return tallies


def _fill(tally: Tally, kind: Kind, chooser: random.Random, folder: Path) -> None:
    event, limit = choose_event(undisturbed(kind).timelines[0], chooser), chooser.choice(LIMITS)

    def prepare(rank: int, timeline: Timeline) -> None:
        def at(reached: int, after: bool) -> None:
            if reached == event:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

        timeline.watch(at if rank == 0 else lambda reached, after: None)

    training = Training(folder, kind, prepare=prepare)
    codes, text = training.wait(60.0), training.errors()
    if codes == [0] * kind.processes:
        tally.end(VOID)
        return
    tally.trials += 1
    if set(codes) != {1}:
        tally.fail(f"limit {limit} at event {event}: codes {codes}: {text[-300:]}")
    elif "cannot write" not in text or not are_lines(text, "train.py", 0):
        tally.fail(f"limit {limit} at event {event}: {text[-300:]}")
    elif resume_and_compare(tally, folder, kind):
        tally.end(ONE_LINE)
