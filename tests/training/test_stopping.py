"""Runs that end early: signals, a full disk, a loss that is not finite."""

import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.training import Train, command, digests, environment


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_to_resume_from(
    train: Train, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    flags = ["--limit", 100, "--batch-size", 20, "--epochs", 12, "--threads", 1, "--output", tmp_path]
    words = command(*flags, "--experiment", "a")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    wait_for(lambda: any((tmp_path / "a" / "checkpoints").glob("step-*")), process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"stopped by {number.name}; checkpoint step-" in err
    assert "Traceback" not in err
    assert train(*flags, "--experiment", "a", "--resume").code == 0
    assert train(*flags, "--experiment", "b").code == 0
    for name in ("model.safetensors", "summary.csv"):
        assert digests(tmp_path / "a")[name] == digests(tmp_path / "b")[name]


def test_a_full_disk_ends_in_one_line_and_loses_nothing(train: Train, tmp_path: Path) -> None:
    """A limit on the size of files, set after the first checkpoint, simulates a full disk: the next write fails."""
    flags = ["--limit", 100, "--batch-size", 20, "--epochs", 12, "--threads", 1, "--output", tmp_path]
    words = command(*flags, "--experiment", "a")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    wait_for(lambda: any((tmp_path / "a" / "checkpoints").glob("step-*")), process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    # Whichever write comes first fails; a copy also names its file.
    line = (
        r"^train\.py: cannot write( \S+)?: File too large; earlier checkpoints are kept: resume with --resume once that"
    )
    assert re.search(line, err, re.MULTILINE), err
    assert "Traceback" not in err
    assert not list((tmp_path / "a" / "checkpoints").glob("*partial*"))
    ended = train(*flags, "--experiment", "a", "--resume")
    assert ended.code == 0, ended.err
    assert "resumed from step-" in ended.out
    assert "note: " not in ended.out, "no checkpoint is damaged"
    assert train(*flags, "--experiment", "b").code == 0
    for name in ("model.safetensors", "summary.csv"):
        assert digests(tmp_path / "a")[name] == digests(tmp_path / "b")[name]


def test_ruined_weights_do_not_become_a_checkpoint(train: Train, tmp_path: Path) -> None:
    """The loss is still finite when the last update of an epoch ruins the weights."""
    flags = [
        "--batch-size",
        100,
        "--val-fraction",
        0,
        "--val-interval",
        1,
        "--lr",
        1e30,
        "--warmup-epochs",
        1,
        "--warmup-lr",
        1e-3,
    ]
    ended = train("--experiment", "a", *flags, "--epochs", 3)
    assert ended.code == 1
    assert "the loss is not finite at update 2; last good checkpoint: step-00000001" in ended.err
    assert sorted(path.name for path in (tmp_path / "a" / "checkpoints").glob("step-*")) == ["step-00000001"]


def test_a_loss_that_is_not_finite_stops_the_run(train: Train, tmp_path: Path) -> None:
    ended = train("--experiment", "a", "--lr", 1e12, "--warmup-epochs", 1, "--warmup-lr", 1e-3, "--epochs", 3)
    assert ended.code == 1
    assert "the loss is not finite at update " in ended.err
    assert "last good checkpoint: step-00000005" in ended.err
    assert sorted(path.name for path in (tmp_path / "a" / "checkpoints").glob("step-*")) == ["step-00000005"]
