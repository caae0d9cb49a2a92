"""Try to break the package, and print a table of what held.

Runs are stopped by signals, killed, damaged, starved of disk and started twice, and processes fail; each run is resumed
and must end bit for bit as one that nothing has disturbed. Wrong calls must end in one clear line, with exit code 2 and
nothing written. Folders and files from elsewhere, with links, forged checkpoints, YAML that explodes, modules and
terminal escapes in them, must harm nothing outside of them. A part is a file in ``faults/parts``; the tests have the
short version. Linux only.

    python scripts/torture.py --part kills --trials 25 --seed 1 --record rows.jsonl     # as often as there is time
    python scripts/torture.py --table rows.jsonl                                        # the rows of all of them
"""

import argparse
import random
import signal
from pathlib import Path

import torch
from faults.parts import PARTS
from faults.tally import Tally, append, read, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="what to try (default: all)")
    parser.add_argument("--trials", type=int, default=100, metavar="N", help="trials per part (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of moments and choices (default: 0)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append the rows to this file")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print the sum of recorded rows")
    given = parser.parse_args()
    torch.set_num_threads(1)
    # Under nohup, or in the background of a script, these are ignored, and trainings started here would inherit that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tallies: list[Tally] = read(given.table) if given.table else []
    for part in [] if given.table else given.part:
        rows = PARTS[part](given.trials, random.Random(f"{part} {given.seed}"))
        tallies += rows
        if given.record:
            append(rows, given.record)
    print("\n".join(table(tallies)))
    raise SystemExit(1 if any(tally.failures for tally in tallies) else 0)


if __name__ == "__main__":
    main()
