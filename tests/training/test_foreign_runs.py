"""Runs from elsewhere: whatever is in their folder, a resume writes to that folder only."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.training import TINY, Ended, train_here
from timm_patchup.errors import CheckpointError
from timm_patchup.runs.checkpoint import Checkpoints, load_checkpoint
from timm_patchup.system.files import checksum
from timm_patchup.training.learner import Learner

PRECIOUS = b"precious"
FLAGS = [*TINY, "--experiment", "a", "--checkpoint-steps", 2, "--val-interval", 1]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended in its second epoch."""
    folder = tmp_path_factory.mktemp("foreign")
    update = Learner.update

    def fail(self: Learner, *args: Any) -> float:
        if (folder / "a" / "checkpoints" / "step-00000006").is_dir():
            raise OSError(28, "No space left on device")
        return update(self, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Learner, "update", fail)
        assert train_here(*FLAGS, "--output", folder).code == 1
    return folder / "a"


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of that run, next to a file and a folder that are not its own."""
    (tmp_path / "victim").write_bytes(PRECIOUS)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").write_bytes(PRECIOUS)
    return Path(shutil.copytree(stopped, tmp_path / "a"))


def resume(run: Path) -> Ended:
    return train_here(*FLAGS, "--output", run.parent, "--resume")


def nothing_else_changed(run: Path) -> bool:
    others = {path.name for path in run.parent.iterdir()} - {run.name}
    kept = (run.parent / "victim").read_bytes() == (run.parent / "folder" / "kept").read_bytes() == PRECIOUS
    return kept and others == {"victim", "folder"} and len(list((run.parent / "folder").iterdir())) == 1


def edit_manifests(run: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    for path in run.glob("checkpoints/step-*/manifest.json"):
        manifest = json.loads(path.read_text())
        edit(manifest)
        path.write_text(json.dumps(manifest))


# Names in a checkpoint


@pytest.mark.parametrize(
    "name", ["{tmp}/victim", "../../victim", "step-00000005", "best-00001.safetensors/../../../victim", "", "."]
)
def test_best_weights_are_restored_under_a_plain_name_only(run: Path, name: str) -> None:
    """The checksum of what is copied is in the same file, so it proves nothing."""
    (run / "model.safetensors").write_bytes(b"any bytes")
    forged = {"best": name.format(tmp=run.parent), "best_sha256": checksum(run / "model.safetensors")}
    edit_manifests(run, lambda manifest: manifest.update(forged))
    notes = Checkpoints(run / "checkpoints", keep=2).repair_best(run / "model.safetensors")
    assert (notes, nothing_else_changed(run)) == ([], True)
    for path in run.glob("checkpoints/step-*"):
        with pytest.raises(CheckpointError, match="is damaged"):
            load_checkpoint(path)


@pytest.mark.parametrize("name", ["{tmp}/victim", "../../../victim", "pipe", "local.json"])
def test_a_checkpoint_has_only_files_of_known_names(run: Path, name: str) -> None:
    checkpoint = Checkpoints(run / "checkpoints", keep=2).paths()[-1]
    os.mkfifo(checkpoint / "pipe")
    shown = name.format(tmp=run.parent)
    edit_manifests(run, lambda manifest: manifest["sha256"].update({shown: checksum(run.parent / "victim")}))
    with pytest.raises(CheckpointError, match="not the name of a file"):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt"])
def test_a_checkpoint_without_a_checksum_is_refused(run: Path, name: str) -> None:
    edit_manifests(run, lambda manifest: manifest["sha256"].pop(name))
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load_checkpoint(Checkpoints(run / "checkpoints", keep=2).paths()[-1])


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "manifest.json"])
def test_a_checkpoint_is_made_of_regular_files(run: Path, name: str) -> None:
    checkpoint = Checkpoints(run / "checkpoints", keep=2).paths()[-1]
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    with pytest.raises(CheckpointError, match="regular file"):
        load_checkpoint(checkpoint)


STATES: dict[str, Callable[[dict[str, Any], Path], object]] = {
    "path": lambda state, run: state["position"].update(best_file=str(run.parent / "victim")),
    "up": lambda state, run: state["position"].update(best_file="../../victim"),
    "epoch": lambda state, run: state["position"].update(epoch="many"),
    "negative": lambda state, run: state["position"].update(epoch=-1),
    "rows": lambda state, run: state["position"].update(rows=[1]),
    "row": lambda state, run: state["position"].update(rows=[{"epoch": "x"}]),
    "more": lambda state, run: state["position"].update(wings=2),
    "recipe": lambda state, run: state.pop("recipe"),
    "optimizer": lambda state, run: state.update(optimizer=3),
    "sums": lambda state, run: state.update(sums=torch.zeros(3, 3, 3)),
    "mixer": lambda state, run: state.pop("mixer"),
}


@pytest.mark.parametrize("how", STATES)
def test_a_forged_state_is_one_line(run: Path, how: str) -> None:
    """Its checksum is right: everything in the folder is from the same hand."""
    for path in run.glob("checkpoints/step-*/state.pt"):
        state = torch.load(path, weights_only=True)
        STATES[how](state, run)
        torch.save(state, path)
        manifest = json.loads((path.parent / "manifest.json").read_text())
        manifest["sha256"]["state.pt"] = checksum(path)
        (path.parent / "manifest.json").write_text(json.dumps(manifest))
    ended = resume(run)
    assert (ended.code, len(ended.err.splitlines())) == (1, 1), ended.err
    assert "step-00000006" in ended.err
    assert "--debug" not in ended.err
    assert nothing_else_changed(run)


# Links


def link(at: Path, to: Path) -> None:
    if at.is_dir() and not at.is_symlink():
        shutil.rmtree(at)
    at.unlink(missing_ok=True)
    at.symlink_to(to)


PARTIAL_NAMES = [
    ".partial-summary.csv",
    ".partial-results.json",
    ".partial-model.safetensors",
    ".partial-curves.png",
    ".partial-confusion.png",
    "checkpoints/.partial-best-00002.safetensors",
    "checkpoints/.partial-step-00000008",
    "checkpoints/.partial-local.json",
    "checkpoints/.lock",
]


@pytest.mark.parametrize("to", ["victim", "folder", "nowhere"])
def test_a_run_writes_through_no_link(run: Path, to: str) -> None:
    for name in [*PARTIAL_NAMES, "curves.png", "checkpoints/step-00000008", "checkpoints/aside-step-00000006"]:
        link(run / name, run.parent / to)
    ended = resume(run)
    assert ended.code == 0, ended.err
    assert nothing_else_changed(run)
    files = [path for path in run.rglob("*") if path.name.startswith(".partial") or path.is_symlink()]
    assert [path for path in files if path.name != "aside-step-00000006"] == []


def test_a_file_with_a_second_name_elsewhere_is_not_overwritten(run: Path) -> None:
    for name in PARTIAL_NAMES:
        if not name.endswith(("lock", "8")):
            os.link(run.parent / "victim", run / name)
    assert resume(run).code == 0
    assert nothing_else_changed(run)


def test_checkpoints_that_are_a_link_are_refused(run: Path) -> None:
    """Pruning would remove the checkpoints of the run that they lead to."""
    shutil.copytree(run / "checkpoints", run.parent / "other")
    link(run / "checkpoints", run.parent / "other")
    before = sorted((run.parent / "other").rglob("*"))
    ended = resume(run)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert "checkpoints is a link" in ended.err
    assert sorted((run.parent / "other").rglob("*")) == before


# Folders in the place of files


@pytest.mark.parametrize("name", ["summary.csv", "model.safetensors", "curves.png"])
def test_a_folder_in_the_place_of_a_file_is_refused_at_once(run: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    ended = resume(run)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended.err
    assert f"{name} is a folder" in ended.err


def test_a_folder_in_the_place_of_the_best_weights_is_one_line(run: Path) -> None:
    best = run / "checkpoints" / "best-00001.safetensors"
    best.unlink()
    best.mkdir()
    ended = resume(run)
    assert (ended.code, len(ended.err.splitlines())) == (1, 1), ended.err
    assert "best-00001.safetensors is a folder" in ended.err
