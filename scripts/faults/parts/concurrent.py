"""The same command twice at once: the second waits or names the first, no row is lost, no finished run is called
failed.
"""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ..forked import Forked
from ..tally import Tally
from ..trials import Kind, Training, scratch, undisturbed

ALONE = Kind(1, 0)
STUDY = """
title: two runs
seeds: 1
metrics: [test_error]
groups:
- benchmarks: [fashion_mini]
  methods: [none, mixup]
"""


def trials(count: int, chooser: random.Random) -> list[Tally]:
    pairs: dict[str, Callable[[Path, Path, float], str | None]] = {
        "training": _trainings,
        "training, resumed": _resumes,
        "evaluation into one report": _evaluations,
        "export of one run": _exports,
        "study": _studies,
    }
    tallies = {what: Tally(f"twice at once: {what}") for what in pairs}
    with scratch() as finished:
        assert Training(finished, ALONE).wait() == [0]
        for number in range(count):
            what = list(pairs)[number % len(pairs)]
            tallies[what].trials += 1
            with scratch() as folder:
                problem = pairs[what](finished / "a", folder, chooser.choice([0.0, chooser.random()]))
            if problem is None:
                tallies[what].end("nothing lost, no failure reported")
            else:
                tallies[what].fail(problem)
    return list(tallies.values())


def _ended(pair: list[Forked]) -> str:
    return f"codes {[process.code for process in pair]}: {[process.errors()[-300:] for process in pair]}"


def _trainings(run: Path, folder: Path, delay: float) -> str | None:
    first = Training(folder, ALONE)
    time.sleep(delay)
    second = Training(folder, ALONE)
    codes = first.wait() + second.wait()
    refused = "is at work in" in first.errors() + second.errors() or "has a" in first.errors() + second.errors()
    same = first.digests() == undisturbed(ALONE).digests
    return None if sorted(map(str, codes)) == ["0", "2"] and refused and same else _ended(first.forks + second.forks)


def _resumes(run: Path, folder: Path, delay: float) -> str | None:
    """Two resumes of one run: the second is refused, or finds the run finished."""
    first = Training(folder, ALONE, ["--resume"])
    time.sleep(3 * delay)
    second = Training(folder, ALONE, ["--resume"])
    codes = first.wait() + second.wait()
    expected = 0 in codes and all(
        code == 0 or (code == 2 and "is at work in" in training.errors())
        for code, training in zip(codes, (first, second))
    )
    same = first.digests() == undisturbed(ALONE).digests
    return None if expected and same else _ended(first.forks + second.forks)


def _evaluations(run: Path, folder: Path, delay: float) -> str | None:
    names, pair = ["one", "two"], []
    for name in names:
        shutil.copytree(run, folder / name)
        words = ["--model", folder / name, "--limit", 50, "--threads", 1, "--output", folder / "report"]
        pair.append(Forked("evaluate.py", words, folder))
        time.sleep(delay)
    codes = [process.wait() for process in pair]
    stored = json.loads((folder / "report" / "results.json").read_text())
    listed = all(name in (folder / "report" / "report.md").read_text() for name in names)
    return None if codes == [0, 0] and sorted(stored["suites"]["clean"]) == names and listed else _ended(pair)


def _exports(run: Path, folder: Path, delay: float) -> str | None:
    shutil.copytree(run, folder / "a")
    pair = []
    for _ in range(2):
        pair.append(Forked("push_to_hub.py", [folder / "a", "--repo", "me/x", "--dry-run"], folder))
        time.sleep(delay)
    codes = [process.wait() for process in pair]
    left = list((folder / "a").glob(".partial*"))
    exported = (folder / "a" / "hub" / "config.json").is_file()
    return None if codes == [0, 0] and exported and not left else _ended(pair)


def _studies(run: Path, folder: Path, delay: float) -> str | None:
    """The second is refused, or has nothing left to do; then the first has finished all."""
    (folder / "two.yaml").write_text(STUDY)
    words = ["--study", "two.yaml", "--limit", 60, "--threads", 1, "--", "--epochs", 1, "--batch-size", 12]
    words += ["--model", "test_resnet"]
    pair = []
    for _ in range(2):
        pair.append(Forked("study.py", words, folder))
        time.sleep(delay)
    codes = [process.wait() for process in pair]
    table = (folder / "studies" / "two" / "results.md").read_text()
    busy = any("another study.py is at work" in process.errors() for process in pair)
    failed = any("failed" in process.output() + process.errors() for process in pair) or "failed" in table
    complete = len(list((folder / "studies" / "two" / "runs").glob("*/results.json"))) == 2
    fine = complete and not failed and ((sorted(map(str, codes)) == ["0", "2"] and busy) or codes == [0, 0])
    return None if fine else f"{_ended(pair)} {pair[0].output()[-300:]}"
