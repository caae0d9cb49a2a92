"""The torture, short: every part runs and nothing breaks. Its full length is in tests/README.md."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT


def torture(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts" / "torture.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]


def test_nothing_breaks() -> None:
    done = torture("--trials", 5, "--seed", 7)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(done.stdout)
    assert {failed for _, _, failed, _ in found} == {"0"}
    parts = ["signal ", "kill -9", "one of two processes", "damaged", "full disk", "twice at once", "wrong call"]
    parts += ["planted links", "foreign manifest", "alias bomb", "import attempt", "terminal escapes"]
    for start in parts:
        assert sum(int(trials) for name, trials, _, _ in found if name.startswith(start)) >= 4, start


def test_rows_of_several_calls_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    tally = importlib.import_module("faults.tally")
    for ending in ("killed", "killed", "void"):
        row = tally.Tally("kill -9", trials=1)
        row.end(ending)
        tally.append([row], tmp_path / "rows.jsonl")
    row.fail("differs")
    tally.append([row, tally.Tally("another", trials=3)], tmp_path / "more.jsonl")
    added = tally.table(tally.read([tmp_path / "rows.jsonl", tmp_path / "more.jsonl"]))
    assert rows("\n".join(added)) == [["another", "3", "0", ""], ["kill -9", "4", "1", "2 killed, 2 void"]]
