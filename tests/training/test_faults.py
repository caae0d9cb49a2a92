"""Faults of disks, files and neighbours: nothing is lost, nothing is reported that is not there."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from accelerate import Accelerator

from tests.support.training import Train, digests
from timm_patchup.errors import OtherProcessFailed, UserError
from timm_patchup.runs.checkpoint import Checkpoints
from timm_patchup.runs.folder import RunFolder
from timm_patchup.runs.local import LocalPaths, recall
from timm_patchup.runs.metrics import Metrics
from timm_patchup.runs.together import together
from timm_patchup.system import files
from timm_patchup.training import resuming
from timm_patchup.training import run as training_run
from timm_patchup.training.learner import Learner
from timm_patchup.training.loop import Trainer


@pytest.fixture
def stopped(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that ended after its first epoch, next to one that nothing has disturbed, in ``b``."""
    assert train("--experiment", "b", "--val-interval", 1).code == 0
    with monkeypatch.context() as patched:
        original = Learner.update

        def fail(self: Learner, batches: Any, done: int, divisors: Any = None) -> float:
            if done == 7:
                raise OSError(28, "No space left on device")
            return original(self, batches, done, divisors)

        patched.setattr(Learner, "update", fail)
        assert train("--experiment", "a", "--val-interval", 1).code == 1
    return tmp_path / "a"


def results(folder: Path) -> dict[str, str]:
    return {name: digest for name, digest in digests(folder).items() if name != "recipe.yaml"}  # which names the run


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x5A
    path.write_bytes(content)


# Best weights


@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_damaged_best_weights_are_restored_from_the_copy_of_the_run(train: Train, stopped: Path, how: str) -> None:
    best = next(stopped.glob("checkpoints/best-*"))
    flip(best) if how == "flipped" else best.unlink()
    ended = train("--experiment", "a", "--resume")
    assert ended.code == 0, ended.err
    assert f"note: the best weights {best.name} were damaged or missing: restored from model.safetensors" in ended.out
    assert results(stopped) == results(stopped.parent / "b")


@pytest.mark.parametrize("copied", [True, False])
def test_best_weights_that_vanish_during_the_run(
    train: Train, stopped: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """They are restored before the test; without a copy, the run says so and resumes from an older checkpoint."""
    original = Trainer._test

    def damaging(self: Trainer) -> Any:
        self.checkpoints.folder.joinpath(self.position.best_file or "").unlink()
        if not copied:
            (stopped / "model.safetensors").unlink()
        return original(self)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_test", damaging)
        ended = train("--experiment", "a", "--resume")
    assert ended.code == (0 if copied else 1), ended.err
    if not copied:
        assert "the best weights best-0000" in ended.err
        assert "are missing: resume the run (--resume)" in ended.err
        assert train("--experiment", "a", "--resume").code == 0
    assert results(stopped) == results(stopped.parent / "b")


def test_damaged_best_weights_without_a_copy_fall_back(train: Train, stopped: Path) -> None:
    flip(next(stopped.glob("checkpoints/best-*")))
    (stopped / "model.safetensors").unlink()
    ended = train("--experiment", "a", "--resume")
    assert ended.code == 0, ended.err
    assert "are damaged: they do not match their checksum; using the one before it" in ended.out
    assert results(stopped) == results(stopped.parent / "b")


def test_a_checkpoint_of_an_earlier_edition_has_no_checksum_of_the_best_weights(train: Train, stopped: Path) -> None:
    for path in stopped.glob("checkpoints/step-*/manifest.json"):
        manifest = json.loads(path.read_text())
        del manifest["best_sha256"]
        path.write_text(json.dumps(manifest))
    ended = train("--experiment", "a", "--resume")
    assert ended.code == 0, ended.err
    assert "resumed from step-00000005" in ended.out
    assert results(stopped) == results(stopped.parent / "b")


# Results


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_test_loss_that_is_not_finite_is_no_result(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    original = Trainer._evaluate

    def evaluate(self: Trainer, loader: Any, *args: Any) -> Metrics:
        metrics = original(self, loader, *args)
        return metrics if loader is self.val_loader else replace(metrics, loss=loss)

    monkeypatch.setattr(Trainer, "_evaluate", evaluate)
    ended = train("--experiment", "a")
    assert ended.code == 1
    assert f"the test loss is {loss}, so there is no result" in ended.err
    assert not (tmp_path / "a" / "results.json").exists()


def test_results_are_valid_json(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        folder.write_results({"test": {"loss": float("nan")}})
    assert not (tmp_path / "results.json").exists()


# Durability


def test_files_reach_the_disk_before_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that is on the disk before its content would leave an empty file after a power cut."""
    events: list[str] = []
    fsync, replace, rename = os.fsync, os.replace, Path.rename

    def name_of(handle: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{handle}")).name

    monkeypatch.setattr(os, "fsync", lambda handle: (events.append(f"sync {name_of(handle)}"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append(f"name {Path(b).name}"), replace(a, b))[1])
    monkeypatch.setattr(Path, "rename", lambda a, b: (events.append(f"name {Path(b).name}"), rename(a, b))[1])
    files.write_whole(tmp_path / "x", "text")
    assert events == ["sync .partial-x", "name x", f"sync {tmp_path.name}"]
    events.clear()
    files.create_folder(tmp_path / "a" / "b")
    assert events == ["sync a", f"sync {tmp_path.name}"]
    events.clear()
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(1, model={"w": torch.ones(2)}, ema=None, state={}, best=None)
    assert events.pop(0) == f"sync {tmp_path.name}", "the name of the folder, before anything is in it"
    named = events.index("name step-00000001")
    before = {f"sync {name}" for name in ("model.safetensors", "state.pt", "manifest.json", ".partial-step-00000001")}
    assert before == set(events[:named])
    assert events[named + 1] == "sync checkpoints"


# Neighbours


def test_a_run_that_finishes_between_the_look_and_the_lock_is_kept(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: Path
) -> None:
    """--overwrite was asked for an unfinished run; meanwhile another process has finished it."""
    load = training_run.load_data

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        if not (stopped / "results.json").exists():
            shutil.copy(tmp_path / "b" / "results.json", stopped)
        return load(*args, **kwargs)

    monkeypatch.setattr(training_run, "load_data", meanwhile)
    before = {path.name: path.read_bytes() for path in stopped.iterdir() if path.is_file()}
    ended = train("--experiment", "a", "--overwrite")
    assert ended.code == 2
    assert "another process finished a run there in the meantime: run the command again to overwrite it" in ended.err
    after = {path.name: path.read_bytes() for path in stopped.iterdir() if path.name in before}
    assert after == before
    assert train("--experiment", "a", "--overwrite").code == 0


@pytest.mark.parametrize("when", ["update", "save", "test"])
def test_a_folder_that_is_removed_ends_the_run_with_one_line(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    kind, name = {"update": (Learner, "update"), "save": (Checkpoints, "save"), "test": (Trainer, "_test")}[when]
    original = getattr(kind, name)

    def removing(*args: Any, **kwargs: Any) -> Any:
        if when != "test":
            shutil.rmtree(tmp_path / "a", ignore_errors=True)
        else:
            (tmp_path / "a" / "recipe.yaml").unlink()
        return original(*args, **kwargs)

    monkeypatch.setattr(kind, name, removing)
    ended = train("--experiment", "a")
    assert ended.code == 1
    assert ended.err == f"train.py: {tmp_path / 'a'} was removed or emptied while the run was at work: it ends here\n"
    assert "results.json" not in ended.out


def test_what_fails_in_one_process_fails_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(OSError, match="full"), together(accelerator):
        raise OSError("full")
    with together(accelerator):
        pass
    monkeypatch.setattr(accelerator, "gather", torch.ones_like)  # another process has failed
    with pytest.raises(OtherProcessFailed), together(accelerator):
        pass


@pytest.mark.parametrize(("failed", "reports"), [([0, 1], True), ([1, 1], False)], ids=["alone", "with the first"])
def test_the_first_process_with_an_error_reports_it(
    monkeypatch: pytest.MonkeyPatch, failed: list[int], reports: bool
) -> None:
    """This one is the second of two; whether the first has failed, too, is known once all have met."""
    accelerator = SimpleNamespace(device=torch.device("cpu"), process_index=1, gather=lambda own: torch.tensor(failed))
    with pytest.raises(UserError) as caught, together(cast(Accelerator, accelerator)):
        raise UserError("cannot be read")
    assert caught.value.one_process is reports


def test_processes_that_see_different_folders_are_refused(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on machines without a shared file system, of which one has the run: they would train silently wrong."""
    monkeypatch.setattr(training_run, "all_equal", lambda accelerator, number: False)
    ended = train("--experiment", "a")
    assert ended.code == 2
    assert "the processes see different files in" in ended.err


def test_processes_that_read_different_checkpoints_are_refused(
    train: Train, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "all_equal", lambda accelerator, number: False)
    ended = train("--experiment", "a", "--resume")
    assert ended.code == 1
    assert "the processes read different checkpoints of" in ended.err


def test_local_paths_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    LocalPaths.of(tmp_path).remember(folder)
    assert recall(folder) == LocalPaths(str(tmp_path))
    for text in ("", "[" * 100_000, "[1]", '{"data_dir": 3}'):
        (folder.checkpoints / "local.json").write_text(text)
        assert recall(folder) == LocalPaths()
