"""The torture, short: every part runs and nothing breaks. Its full length is in tests/README.md."""

import subprocess
import sys
from pathlib import Path

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
    parts = ("signal ", "kill -9", "one of two processes", "damaged", "full disk", "twice at once", "wrong call")
    for start in parts:
        assert sum(int(trials) for name, trials, _, _ in found if name.startswith(start)) >= 4, start


def test_rows_of_several_calls_add_up(tmp_path: Path) -> None:
    record = tmp_path / "rows.jsonl"
    for trials, seed in ((3, 1), (2, 2)):
        assert torture("--part", "calls", "--trials", trials, "--seed", seed, "--record", record).returncode == 0
    with record.open("a") as file:
        file.write('{"name": "wrong call", "trials": 1, "failures": ["x"], "endings": {}}\n')
    done = torture("--table", record)
    assert done.returncode == 1, "a failure is in the table"
    assert rows(done.stdout) == [["wrong call", "6", "1", "5 clear lines, exit code 2, nothing written"]]
