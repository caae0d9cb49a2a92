"""What mixing costs: the operation, a training step, memory and import, as ratios taken in one interleaved run.

    python scripts/benchmark.py [--part op step ...] [--rounds 15] [--json FILE]
    python scripts/benchmark.py --against path/to/another/checkout     # this checkout's step over the other's

A table is a file in ``benchmarks/parts``. Every case of it runs once per round, in random order, so that other load on
the machine affects all of them. The numbers are medians over the rounds, divided by the reference case of the table.
Absolute times are not kept.
"""

import argparse
import json
from pathlib import Path

import timm
import torch
from benchmarks.against import edition_rows
from benchmarks.parts import PARTS
from benchmarks.timing import Row


def show(title: str, rows: list[Row]) -> None:
    columns = list(rows[0])
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(str(row[column]) for column in columns)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    help_part = f"tables to make, of {', '.join(PARTS)} (default: all)"
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help=help_part)
    parser.add_argument(
        "--rounds", type=int, default=20, metavar="N", help="interleaved rounds per table (default: %(default)s)"
    )
    parser.add_argument(
        "--model",
        default="preactresnet18",
        help="model of the part methods, for images of 32 x 32 (default: %(default)s)",
    )
    parser.add_argument("--batch-size", type=int, default=100, help="batch of the part methods (default: %(default)s)")
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="part loader: JPEGs in class folders; default: synthetic"
    )
    parser.add_argument("--workers", type=int, default=2, help="part loader: loader processes (default: %(default)s)")
    parser.add_argument(
        "--image-batch-size", type=int, default=64, help="part loader: images per batch (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, help="threads of torch; default: torch's own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    parser.add_argument("--against", type=Path, metavar="DIR", help="only compare with another checkout")
    arguments = parser.parse_args()
    if arguments.rounds < 4:
        parser.error(f"--rounds must be at least 4, one per site, got {arguments.rounds}")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.against:
        show("A training step, this checkout over the other", list(edition_rows(arguments.against, arguments.rounds)))
        return
    results = {}
    for part in arguments.part:
        results[part] = list(PARTS[part].rows(arguments))
        show(PARTS[part].title, results[part])
    if arguments.json:
        about = {"torch": torch.__version__, "timm": timm.__version__, "threads": torch.get_num_threads()}
        arguments.json.write_text(json.dumps({**about, "rounds": arguments.rounds, **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
