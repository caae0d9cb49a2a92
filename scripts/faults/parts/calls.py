"""Wrong calls: each must end with exit code 2 and one clear line per problem, and write nothing."""

import random

from ..forked import Forked, are_lines
from ..tally import Tally
from ..trials import scratch
from ..wrong_calls import wrong_calls

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def trials(count: int, chooser: random.Random) -> list[Tally]:
    tally, calls = Tally("wrong call"), wrong_calls()
    for command, words in calls if count >= len(calls) else chooser.sample(calls, count):
        tally.trials += 1
        with scratch() as folder:
            process = Forked(command, words, folder, variables=OFFLINE)
            code, text = process.wait(), process.errors()
            left = sorted(path.name for path in folder.iterdir())
        shown = f"{command} {[word[:40] for word in words]}"
        if code != 2 or not are_lines(text, command, code):
            tally.fail(f"{shown}: code {code}: {text[-300:]!r}")
        elif left:
            tally.fail(f"{shown}: wrote {left}")
        else:
            tally.end("clear lines, exit code 2, nothing written")
    return [tally]
