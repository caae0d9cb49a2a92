"""The benchmark: every file of a part is a choice of the command, cases take turns, and the tables are printed."""

import importlib
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import ROOT

SCRIPTS = ROOT / "scripts"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package beside the script, found as when the script is run, and forgotten afterwards."""
    monkeypatch.syspath_prepend(SCRIPTS)
    yield importlib.import_module("benchmarks.parts")
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


def run(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *flags])
    runpy.run_path(str(SCRIPTS / "benchmark.py"), run_name="__main__")


def test_every_file_of_a_part_is_a_choice(benchmarks: ModuleType) -> None:
    files = [path for path in (SCRIPTS / "benchmarks" / "parts").glob("*.py") if path.stem != "__init__"]
    assert len(benchmarks.PARTS) == len(files) >= 7
    assert {"op", "step", "compiled", "methods", "loop", "memory", "import"} <= benchmarks.PARTS.keys()
    for name, part in benchmarks.PARTS.items():
        assert part.name == name
        assert part.title


def test_a_part_is_printed_and_written(
    benchmarks: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    shapes = importlib.import_module("benchmarks.parts.memory")
    monkeypatch.setattr(shapes, "SHAPES", ((4, 8, 16, 16),))
    run(monkeypatch, "--part", "memory", "--json", str(tmp_path / "numbers.json"))
    printed = capsys.readouterr().out
    (row,) = json.loads((tmp_path / "numbers.json").read_text())["memory"]
    assert benchmarks.PARTS["memory"].title in printed
    assert f"| {' | '.join(row)} |" in printed
    assert f"| {' | '.join(row.values())} |" in printed
    # Of a batch of four, the bool mask is a sixteenth; the naive form keeps copies of the batch.
    assert float(row["hard PatchUp"].rstrip("%")) < 8.0
    assert float(row["hard naive"].rstrip("%")) > 100.0


def test_an_unknown_part_is_refused(
    benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--part", "opp")
    assert "invalid choice: 'opp'" in capsys.readouterr().err


def test_every_case_runs_once_per_round_and_once_before(benchmarks: ModuleType) -> None:
    timing = importlib.import_module("benchmarks.timing")
    ran: list[str] = []
    seconds = timing.medians({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, 5)
    assert seconds.keys() == {"a", "b"}
    for number in range(6):
        assert set(ran[2 * number : 2 * number + 2]) == {"a", "b"}
    assert len(ran) == 12


def test_loaders_are_compared_on_the_same_images(
    benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loader = importlib.import_module("benchmarks.parts.loader")
    loader.write_jpegs(tmp_path / "photos", 9)
    flags = ["--part", "loader", "--images", str(tmp_path / "photos"), "--workers", "1", "--image-batch-size", "4"]
    run(monkeypatch, *flags, "--rounds", "4", "--json", str(tmp_path / "numbers.json"))
    rows = json.loads((tmp_path / "numbers.json").read_text())["loader"]
    assert [row["loader"] for row in rows] == ["timm_patchup", "timm", "timm, prefetcher", "decoding alone"]
    assert {row["images"] for row in rows} == {"8 of photos"}
    assert {row["over timm's faster"] for row in rows} & {"1.00"}
    with pytest.raises(SystemExit, match="9 images are fewer than a batch of 10"):
        run(monkeypatch, *flags[:-1], "10")
