"""Several processes train the same as one, and launches that cannot work are refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.training import TINY, TWO_PROCESSES, environment, launch, rows
from timm_patchup.runs.folder import RunFolder


def test_two_processes_equal_one(tmp_path: Path) -> None:
    """The same batches, and without batch norm the same weights except for rounding.

    The last batch of an epoch has 15 images, of which one process has 7.
    """
    flags = [*TINY, "--mix", "none", "--model", "test_convnext", "--lr", 0.01, "--limit", 95]
    flags += ["--no-drop-last", "--val-interval", 1, "--output", tmp_path, "--reprob", 0.5]
    one = launch(*flags, "--experiment", "one", launcher=True)
    two = launch(*flags, "--experiment", "two", processes=2)
    assert (one.code, two.code) == (0, 0), two.err
    assert "batch 20 = 2 processes x 10 images, 5 updates per epoch" in two.out
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for key in first:
        torch.testing.assert_close(second[key], first[key], rtol=1e-3, atol=1e-5)
    for mine, theirs in zip(rows(tmp_path / "one"), rows(tmp_path / "two")):
        assert {key: float(mine[key]) for key in mine} == pytest.approx(
            {key: float(theirs[key]) for key in theirs}, rel=1e-3
        )
    results = [json.loads((tmp_path / name / "results.json").read_text())["test"] for name in ("one", "two")]
    assert results[0] == pytest.approx(results[1], rel=1e-4)
    assert results[1]["count"] == 95


def test_an_odd_batch_is_refused_for_two_processes(tmp_path: Path) -> None:
    ended = launch(*TINY, "--batch-size", 25, "--output", tmp_path, processes=2)
    assert ended.code != 0
    assert (
        "batch_size 25 is not divisible by 2 processes x 1 accumulation steps: use a batch_size of 24 or 26"
        in ended.err
    )
    assert list(tmp_path.iterdir()) == []


def test_processes_that_do_not_know_of_each_other_are_refused(tmp_path: Path) -> None:
    """Without an explicit CPU this launch starts two independent processes, which is refused."""
    script = tmp_path / "script.py"
    script.write_text(
        "from timm_patchup.runs import accelerator\n"
        "from timm_patchup.cli.train import main\n"
        "accelerator._has_accelerator = lambda: True\n"
        f"main({[*TINY, '--output', str(tmp_path / 'out')]!r})\n"
    )
    words = [sys.executable, "-m", "accelerate.commands.launch", *TWO_PROCESSES, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode != 0
    assert "2 processes were started that do not know of each other (Accelerate sees 1)" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_refused_on_all_processes(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "a").locked():
        ended = launch(*TINY, "--output", tmp_path, "--experiment", "a", processes=2)
    assert ended.code != 0
    assert ended.err.count("another process is at work in") == 1
    assert RunFolder(tmp_path / "a").state() == "new"
