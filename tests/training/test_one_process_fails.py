"""A failure of one of two real processes ends both, with the reason once; ``scripts/torture.py`` has more of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.training import TWO_PROCESSES, environment, tiny

REASON = "the reason of this test"
# What fails in one process: its rank, more flags, what is replaced, and the start of its line.
FAULTS = {
    "in the loop": (
        1,
        [],
        f"at(Learner, 'update', 3, raising(RuntimeError({REASON!r})))",
        f"train.py, process 1: RuntimeError: {REASON}",
    ),
    "in the data": (
        1,
        [],
        f"at(MemoryImages, '__getitems__', 3, raising(DataError({REASON!r}, retry=True)))",
        f"train.py, process 1: {REASON}",
    ),
    "before the loop": (
        1,
        [],
        f"at(run, 'load_data', 1, raising(DataError({REASON!r})))",
        f"train.py, process 1: {REASON}",
    ),
    "a full disk": (
        0,
        [],
        f"at(Checkpoints, 'save', 1, raising(OSError(28, {REASON!r})))",
        f"train.py: cannot write: {REASON}",
    ),
    "a killed worker": (
        1,
        ["--workers", "1"],
        "at(Learner, 'update', 3, kill_worker)",
        "train.py, process 1: a loader process (pid ",
    ),
}
SCRIPT = """
import multiprocessing, os, signal
from timm_patchup.cli.train import main
from timm_patchup.data.images import MemoryImages
from timm_patchup.errors import DataError
from timm_patchup.runs.checkpoint import Checkpoints
from timm_patchup.training import run
from timm_patchup.training.learner import Learner

def raising(error):
    def act():
        raise error
    return act

def kill_worker():
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

def at(owner, name, call, act):
    original, calls = getattr(owner, name), []
    def wrapped(*args, **kwargs):
        calls.append(name)
        if len(calls) == call:
            act()
        return original(*args, **kwargs)
    setattr(owner, name, wrapped)

if os.environ["RANK"] == "{rank}":
    {fault}
main({flags!r})
"""


@pytest.mark.parametrize("case", list(FAULTS))
def test_a_failure_of_one_process_ends_both_with_its_reason_once(tmp_path: Path, case: str) -> None:
    rank, more, fault, line = FAULTS[case]
    flags = tiny("--model", "test_resnet", "--epochs", "50", *more, "--output", str(tmp_path), "--experiment", "a")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(rank=rank, fault=fault, flags=flags))
    words = [sys.executable, "-m", "accelerate.commands.launch", *TWO_PROCESSES, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=300)
    own = [text for text in done.stderr.splitlines() if text.startswith("train.py")]
    assert done.returncode != 0
    assert sum(text.startswith(line) for text in own) == 1, own
    other = "train.py: stopped, because another process failed: its line has the reason"
    # The launcher may end the other process before it has noticed.
    assert set(own) - {other} == {next(text for text in own if text.startswith(line))}
    assert len(own) <= 2
    assert not (tmp_path / "a" / "results.json").exists()
