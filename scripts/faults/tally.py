"""The rows of the torture's table: how many trials, and how they ended. Rows of several calls add up."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    """One row: how many trials, how they ended, and what went wrong."""

    name: str
    trials: int = 0
    failures: list[str] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)

    def end(self, how: str) -> None:
        """Count a trial that ended as it should."""
        self.endings[how] += 1

    def fail(self, what: str) -> None:
        self.failures.append(what)
        print(f"FAILED {self.name}: {what}", file=sys.stderr, flush=True)


def append(tallies: Iterable[Tally], path: Path) -> None:
    """Append rows to a file, one line of JSON each."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(vars(tally)) + "\n" for tally in tallies)


def read(paths: Sequence[Path]) -> list[Tally]:
    """Return the rows of several files; those with the same name are added up."""
    rows: dict[str, Tally] = {}
    for line in (line for path in paths for line in path.read_text(encoding="utf-8").splitlines()):
        content = json.loads(line)
        row = rows.setdefault(content["name"], Tally(content["name"]))
        row.trials += content["trials"]
        row.failures += content["failures"]
        row.endings += Counter(content["endings"])
    return [rows[name] for name in sorted(rows)]


def table(tallies: Iterable[Tally]) -> list[str]:
    """Return the lines of the table."""
    lines = ["| what | trials | failed | how they ended |", "| --- | ---: | ---: | --- |"]
    for tally in tallies:
        endings = ", ".join(f"{count} {how}" for how, count in sorted(tally.endings.items()))
        lines.append(f"| {tally.name} | {tally.trials} | {len(tally.failures)} | {endings} |")
    return lines
