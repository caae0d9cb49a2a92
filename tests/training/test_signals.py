"""Requests to stop at every kind of moment: none is lost, the checkpoint is written, the resumed run ends the same."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from accelerate import Accelerator

from tests.support.training import TINY, Train, command, digests, environment, train_here
from timm_patchup.data import loader
from timm_patchup.recipe.parts import ImageSpec
from timm_patchup.runs.checkpoint import Checkpoints
from timm_patchup.runs.folder import RunFolder
from timm_patchup.system.signals import stop_signals
from timm_patchup.training.learner import Learner
from timm_patchup.training.loop import Trainer
from timm_patchup.training.stopping import StopSignal

SAME = ("model.safetensors", "summary.csv", "results.json")
POINTS = [
    (Accelerator, "gather"),  # while the processes agree on whether to stop
    (Learner, "update"),
    (Learner, "state_dict"),
    (Trainer, "_evaluate"),
    (Trainer, "_asked_to_stop"),
    (Checkpoints, "save"),
    (Checkpoints, "save_best"),
    (RunFolder, "write_summary"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of a run that nothing has interrupted."""
    output = tmp_path_factory.mktemp("whole")
    assert train_here(*TINY, "--output", output, "--experiment", "a").code == 0
    return digests(output / "a")


def interrupt(
    monkeypatch: pytest.MonkeyPatch, kind: type, name: str, *, call: int, after: bool, number: int = signal.SIGTERM
) -> None:
    """Send a signal to this process at the given call of a method, before it or after it has done its work."""
    original: Callable[..., Any] = getattr(kind, name)
    seen = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        training = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # the handlers are there, no signal was
        seen += training
        this_call = training and seen == call
        if this_call and not after:
            os.kill(os.getpid(), number)
        result = original(*args, **kwargs)
        if this_call and after:
            os.kill(os.getpid(), number)
        return result

    monkeypatch.setattr(kind, name, wrapped)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "name"), POINTS, ids=[name for _, name in POINTS])
def test_a_signal_at_any_point_stops_with_a_checkpoint(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: dict[str, str],
    kind: type,
    name: str,
    after: bool,
) -> None:
    with monkeypatch.context() as patched:
        interrupt(patched, kind, name, call=1, after=after)
        ended = train("--experiment", "a")
    assert ended.code == 128 + signal.SIGTERM, ended.err
    assert ended.err.startswith("train.py: stopped by SIGTERM; checkpoint step-")
    assert train("--experiment", "a", "--resume").code == 0
    assert {name: digests(tmp_path / "a")[name] for name in SAME} == {name: whole[name] for name in SAME}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_every_request_to_stop_is_heard(train: Train, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    interrupt(monkeypatch, Learner, "update", call=2, after=True, number=number)
    ended = train("--experiment", "a")
    assert ended.code == 128 + number
    assert f"stopped by {number.name}; checkpoint step-00000002" in ended.err


def test_the_first_signal_is_kept_and_the_second_ends_the_process() -> None:
    """In a separate process, between two looks of a loop, as Ctrl-C and a scheduler may both ask."""
    code = """
import os, signal
from timm_patchup.training.stopping import StopSignal
stop = StopSignal()
with stop.listening():
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.signal == signal.SIGINT
    print("first", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("second", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("first\n", -signal.SIGTERM)


def test_nohup_stays_in_force() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in stop_signals()
        stop = StopSignal()
        with stop.listening():
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal == 0
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def wait_for_checkpoint(folder: Path, process: subprocess.Popen) -> None:
    end = time.monotonic() + 120
    while not any((folder / "checkpoints").glob("step-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def own_lines(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("train.py")]


def tree_of(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_a_signal_to_the_group_leaves_the_loaders_workers_to_their_parent(train: Train, tmp_path: Path) -> None:
    flags = [*TINY, "--epochs", 40, "--workers", 2, "--output", tmp_path, "--experiment", "a"]
    process = subprocess.Popen(
        command(*flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    wait_for_checkpoint(tmp_path / "a", process)
    workers = tree_of(process)
    assert len(workers) >= 2
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert len(own_lines(err)) == 1, err
    assert own_lines(err)[0].startswith("train.py: stopped by SIGTERM; checkpoint step-")
    assert "Traceback" not in err
    psutil.wait_procs(workers, timeout=30)
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)


def test_a_worker_that_is_killed_is_named(tmp_path: Path) -> None:
    flags = [*TINY, "--epochs", 40, "--workers", 2, "--output", tmp_path, "--experiment", "a"]
    process = subprocess.Popen(
        command(*flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    wait_for_checkpoint(tmp_path / "a", process)
    killed = next(child for child in tree_of(process) if "multiprocessing" not in " ".join(child.cmdline()))
    killed.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    lines = own_lines(err)
    assert len(lines) == 1, err
    assert f"a loader process (pid {killed.pid}) died" in lines[0]
    assert "resume the run (--resume)" in lines[0]
    assert "Traceback" not in err


def test_workers_have_the_handlers() -> None:
    """Without them, a signal to the group ends the workers before the loop looks."""
    spec = ImageSpec(input_size=(3, 8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
    images: Any = SimpleNamespace(spec=spec, augment=None, describe=str)
    made = loader.ImageLoader(images, [[0]], workers=1, device=torch.device("cpu"))  # type: ignore[arg-type]
    assert made._loader.worker_init_fn is not None


def test_a_launcher_that_is_terminated_takes_its_training_with_it(train: Train, tmp_path: Path) -> None:
    """Accelerate launch of one process does not pass SIGTERM on."""
    flags = [*TINY, "--epochs", 40, "--output", tmp_path, "--experiment", "a"]
    process = subprocess.Popen(
        command(*flags, launcher=True), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    wait_for_checkpoint(tmp_path / "a", process)
    children = tree_of(process)
    assert children
    process.terminate()
    _, err = process.communicate(timeout=60)  # until the training has closed its end, too
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert "train.py: stopped by SIGTERM; checkpoint step-" in err
    ended = train("--epochs", 40, "--experiment", "a", "--resume")
    assert ended.code == 0
    assert "resumed from step-" in ended.out


def test_a_terminal_that_is_closed_ends_the_training_with_a_checkpoint(tmp_path: Path) -> None:
    """SIGHUP comes with it, and whatever is printed afterwards fails."""
    words = command(*TINY, "--epochs", 400, "--output", tmp_path, "--experiment", "a", "--log-interval", 1)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(words[0], words, environment())
    checkpoints = tmp_path / "a" / "checkpoints"
    end = time.monotonic() + 120
    while not any(checkpoints.glob("step-*")):
        assert time.monotonic() < end
        if select.select([terminal], [], [], 0.02)[0]:
            os.read(terminal, 65536)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert not list(checkpoints.glob(".partial*"))
