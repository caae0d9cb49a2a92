"""Exact resume: a run that is killed at random times ends bit for bit like one that was not."""

import json
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.support.training import TINY, command, digests, environment, kill_tree, launch, rows, train_here
from timm_patchup.runs.checkpoint import Checkpoints
from timm_patchup.system.files import checksum

KILLS = 10
# 150 updates, each fifth of them on fewer images, a checkpoint every second one; dropout, EMA and per-image
# augmentation: everything random.
LONG = ["--limit", 95, "--no-drop-last", "--batch-size", 20, "--epochs", 30, "--threads", 1, "--checkpoint-steps", 2]
LONG += ["--drop", 0.3, "--model-ema", "--model-ema-decay", 0.9, "--reprob", 0.3, "--val-interval", 3]


def newest_step(folder: Path) -> str:
    return max((path.name for path in (folder / "checkpoints").glob("step-*")), default="")


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_at_random_times_it_ends_the_same(tmp_path: Path, processes: int) -> None:
    flags = [*LONG, "--output", tmp_path]
    reference = launch(*flags, "--experiment", "whole", processes=processes)
    assert reference.code == 0, reference.err
    folder = tmp_path / "killed"
    rng = random.Random(processes)
    for _ in range(KILLS):
        before = newest_step(folder)
        words = command(*flags, "--experiment", "killed", "--resume", processes=processes)
        with (tmp_path / "log.txt").open("w") as log:
            process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment())
            end = time.monotonic() + 180
            while newest_step(folder) <= before:
                assert process.poll() is None, (tmp_path / "log.txt").read_text()
                assert time.monotonic() < end
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.12))
            assert process.poll() is None, "the run was over before it could be killed: make it longer"
            kill_tree(process)
    last = launch(*flags, "--experiment", "killed", "--resume", processes=processes)
    assert last.code == 0, last.err
    assert "resumed from step-" in last.out
    first, second = digests(tmp_path / "whole"), digests(folder)
    assert first.pop("recipe.yaml") != second.pop("recipe.yaml"), "its first line has the name of the run"
    assert second == first


def test_a_method_that_runs_the_model_resumes_exactly_on_two_processes(tmp_path: Path) -> None:
    """Puzzle Mix runs the model in eval mode, so that all processes need the statistics of the checkpoint."""
    flags = [*TINY, "--output", tmp_path, "--mix", "puzzle_mix", "--checkpoint-steps", 3, "--checkpoint-hist", 9]
    assert launch(*flags, "--experiment", "whole", processes=2).code == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "a")
    (tmp_path / "a" / "results.json").unlink()
    ended = launch("--resume", tmp_path / "a" / "checkpoints" / "step-00000003", "--threads", 1, processes=2)
    assert ended.code == 0, ended.err
    assert "resumed from step-00000003: epoch 1, update 3" in ended.out
    assert same_end(tmp_path)


@pytest.fixture
def stopped(tmp_path: Path) -> list[object]:
    """The flags of a run of two epochs, whole in ``whole``, and stopped after its first checkpoints in ``a``."""
    flags: list[object] = [*TINY, "--output", tmp_path, "--checkpoint-steps", 2, "--checkpoint-hist", 9]
    assert train_here(*flags, "--experiment", "whole").code == 0
    assert train_here(*flags, "--experiment", "a").code == 0
    (tmp_path / "a" / "results.json").unlink()
    return flags


def same_end(tmp_path: Path) -> bool:
    first, second = digests(tmp_path / "whole"), digests(tmp_path / "a")
    return all(first[name] == second[name] for name in first if name != "recipe.yaml")


def test_from_every_single_checkpoint(tmp_path: Path, stopped: list[object]) -> None:
    paths = Checkpoints(tmp_path / "a" / "checkpoints", keep=9).paths()
    assert [path.name[-2:] for path in paths] == ["02", "04", "05", "06", "08", "10"]
    for path in reversed(paths):
        (tmp_path / "a" / "results.json").unlink(missing_ok=True)
        (tmp_path / "a" / "model.safetensors").unlink(missing_ok=True)
        ended = train_here("--resume", path, "--threads", 1)
        assert ended.code == 0, ended.err
        assert f"resumed from {path.name}" in ended.out
        assert same_end(tmp_path), path.name


@pytest.mark.parametrize("step", [5, 8])
def test_a_checkpoint_of_an_earlier_edition(tmp_path: Path, stopped: list[object], step: int) -> None:
    """It summed the loss alone: the weights go on exactly, and what is not known of an epoch stays empty."""
    path = tmp_path / "a" / "checkpoints" / f"step-{step:08d}"
    state = torch.load(path / "state.pt", weights_only=True)
    state["sums"] = state["sums"][:, :2]
    for row in state["position"]["rows"]:
        row.pop("train_nll"), row.pop("train_top1")
    torch.save(state, path / "state.pt")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"]["state.pt"] = checksum(path / "state.pt")
    (path / "manifest.json").write_text(json.dumps(manifest))
    ended = train_here("--resume", path, "--threads", 1)
    assert ended.code == 0, ended.err
    first, second = digests(tmp_path / "whole"), digests(tmp_path / "a")
    assert first["model.safetensors"] == second["model.safetensors"]
    old, new = rows(tmp_path / "whole"), rows(tmp_path / "a")
    assert [row["train_loss"] for row in new] == [row["train_loss"] for row in old]
    known = [row["train_nll"] for row in old]
    assert all(known)
    assert [row["train_nll"] for row in new] == (["", known[1]] if step == 5 else ["", ""])


def test_damaged_checkpoints_are_named_and_skipped(tmp_path: Path, stopped: list[object]) -> None:
    paths = Checkpoints(tmp_path / "a" / "checkpoints", keep=9).paths()
    (paths[-1] / "state.pt").write_bytes(b"rubbish")
    (paths[-2] / "model.safetensors").unlink()
    ended = train_here(*stopped, "--experiment", "a", "--resume")
    assert ended.code == 0, ended.err
    assert f"note: {paths[-1].name} is damaged: state.pt does not match its checksum" in ended.out
    assert f"note: {paths[-2].name} is damaged: " in ended.out
    assert f"resumed from {paths[-3].name}" in ended.out
    assert same_end(tmp_path)


def test_all_damaged_starts_at_the_beginning(tmp_path: Path, stopped: list[object]) -> None:
    for path in Checkpoints(tmp_path / "a" / "checkpoints", keep=9).paths():
        (path / "manifest.json").unlink()
    ended = train_here(*stopped, "--experiment", "a", "--resume")
    assert ended.code == 0, ended.err
    assert "no checkpoint to resume from: starting at the beginning" in ended.out
    assert same_end(tmp_path)


def test_resume_starts_a_new_run_if_there_is_none(tmp_path: Path) -> None:
    assert train_here(*TINY, "--output", tmp_path, "--experiment", "a", "--resume").code == 0
    assert train_here(*TINY, "--output", tmp_path, "--experiment", "whole").code == 0
    assert same_end(tmp_path)


def test_resume_needs_only_the_folder(tmp_path: Path, stopped: list[object]) -> None:
    ended = train_here("--resume", tmp_path / "a", "--threads", 1)
    assert ended.code == 0, ended.err
    assert same_end(tmp_path)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    flags = [*LONG, "--output", tmp_path, "--experiment", "a"]
    process = subprocess.Popen(command(*flags), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    try:
        while not newest_step(tmp_path / "a"):
            assert process.poll() is None
            time.sleep(0.01)
        second = train_here(*flags, "--resume")
        assert second.code == 2
        assert "another process is at work in" in second.err
        assert train_here(*flags, "--overwrite").code == 2
    finally:
        kill_tree(process)
    assert train_here("--resume", tmp_path / "a", "--threads", 1).code == 0


def test_another_number_of_processes_resumes_with_a_note(tmp_path: Path, stopped: list[object]) -> None:
    paths = Checkpoints(tmp_path / "a" / "checkpoints", keep=9).paths()
    ended = launch("--resume", paths[0], "--threads", 1, processes=2)
    assert ended.code == 0, ended.err
    assert "the checkpoint was written by 1 process(es), now there are 2" in ended.out
