"""Run the training command in tests: in this process, or through the real launch command."""

import csv
import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from accelerate.state import AcceleratorState, GradientState

from tests.support.paths import ROOT
from timm_patchup.cli.train import main

# Small enough for a test: 100 images, 5 updates per epoch, two epochs.
TINY = ["--limit", "100", "--batch-size", "20", "--epochs", "2", "--threads", "1"]
TWO_PROCESSES = ["--config_file", str(ROOT / "recipes" / "accelerate" / "cpu_2.yaml")]
RESULT_FILES = ("model.safetensors", "summary.csv", "results.json", "recipe.yaml")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Train = Callable[..., Ended]


def tiny(*flags: object) -> list[str]:
    """Return the flags of a tiny run and others, which replace those of the same name."""
    words = [str(flag) for flag in flags]
    pairs = zip(TINY[::2], TINY[1::2])
    return [word for pair in pairs if pair[0] not in words for word in pair] + words


def _once(flags: Sequence[object]) -> list[str]:
    """Return flags as words; if they begin with those of a tiny run, these do not repeat what follows."""
    words = [str(flag) for flag in flags]
    return tiny(*words[len(TINY) :]) if words[: len(TINY)] == TINY else words


def train_here(*flags: object) -> Ended:
    """Run the command in this process, after resetting the state that Accelerate keeps between runs."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as caught:
        main(_once(flags))
    return Ended(int(caught.value.code or 0), out.getvalue(), err.getvalue())


def command(*flags: object, processes: int = 1, launcher: bool = False) -> list[str]:
    """Return the command line: accelerate launch for several processes, or python -m."""
    module = ["-m", "timm_patchup.training", *_once(flags)]
    if processes == 1 and not launcher:
        return [sys.executable, *module]
    configuration = TWO_PROCESSES if processes == 2 else []
    return [sys.executable, "-m", "accelerate.commands.launch", *configuration, *module]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def launch(*flags: object, processes: int = 1, launcher: bool = False) -> Ended:
    """Run the command in new processes."""
    words = command(*flags, processes=processes, launcher=launcher)
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=600)
    return Ended(done.returncode, done.stdout, done.stderr)


def kill_tree(process: subprocess.Popen) -> None:
    """Kill a command and all its children: workers of a launcher have their own sessions."""
    root = psutil.Process(process.pid)
    tree = [root, *root.children(recursive=True)]
    for member in tree:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(tree)
    process.wait()


def rows(folder: Path) -> list[dict[str, str]]:
    """Return the epochs of a run's summary.csv."""
    with (folder / "summary.csv").open() as file:
        return list(csv.DictReader(file))


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of each result file."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in RESULT_FILES}
