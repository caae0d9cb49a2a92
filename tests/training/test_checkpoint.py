"""Checkpoints: complete or absent, verified, pruned, and never unpickled."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from timm_patchup.errors import CheckpointError
from timm_patchup.runs.checkpoint import Checkpoints, load_checkpoint


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2)


def save(checkpoints: Checkpoints, step: int, best: str | None = None, *, ema: bool = False) -> Path:
    weights = {"w": torch.full((3, 2), float(step)), "n": torch.tensor(step)}
    average = {"w": torch.zeros(2)} if ema else None
    return checkpoints.save(step, model=weights, ema=average, state={"step": step}, best=best)


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_round_trip(checkpoints: Checkpoints) -> None:
    path = save(checkpoints, 7, ema=True)
    read = load_checkpoint(path)
    assert torch.equal(read.model["w"], torch.full((3, 2), 7.0))
    assert read.ema is not None
    assert read.state == {"step": 7}
    assert load_checkpoint(save(checkpoints, 8)).ema is None


def test_the_last_ones_and_their_best_weights_are_kept(checkpoints: Checkpoints) -> None:
    for step in (1, 2, 3, 4):
        name = checkpoints.best_name(step)
        if step in (1, 3):
            checkpoints.save_best(name, {"w": torch.ones(2) * step})
        save(checkpoints, step, best=checkpoints.best_name(1 if step < 3 else 3))
    assert names(checkpoints) == ["best-00003.safetensors", "step-00000003", "step-00000004"]
    assert checkpoints.load_best("best-00003.safetensors")["w"][0] == 3


def test_best_weights_of_checkpoints_set_aside_are_kept(checkpoints: Checkpoints) -> None:
    for step in (1, 2):
        checkpoints.save_best(checkpoints.best_name(step), {"w": torch.ones(2)})
        save(checkpoints, step, best=checkpoints.best_name(step))
    checkpoints.set_aside_after(checkpoints.folder / "step-00000001")
    save(checkpoints, 2, best=checkpoints.best_name(1))
    assert "best-00002.safetensors" in names(checkpoints)


def test_a_damaged_older_checkpoint_does_not_prevent_saving(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        save(checkpoints, step)
    (tmp_path / "step-00000002" / "manifest.json").write_text("")
    save(checkpoints, 4)
    assert names(checkpoints) == ["step-00000002", "step-00000003", "step-00000004"]


def test_memory_format_does_not_matter(checkpoints: Checkpoints) -> None:
    weight = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    path = checkpoints.save(1, model={"w": weight}, ema=None, state={}, best=None)
    assert torch.equal(load_checkpoint(path).model["w"], weight)


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "manifest.json"])
@pytest.mark.parametrize("how", ["cut", "flipped", "gone", "empty"])
def test_a_damaged_newest_is_named_and_the_one_before_it_used(checkpoints: Checkpoints, name: str, how: str) -> None:
    save(checkpoints, 1)
    newest = save(checkpoints, 2) / name
    content = newest.read_bytes()
    if how == "gone":
        newest.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]
        newest.write_bytes({"cut": content[:-5], "flipped": flipped, "empty": b""}[how])
    found, damaged = checkpoints.newest()
    assert found is not None
    assert found.path.name == "step-00000001"
    assert len(damaged) == 1
    assert damaged[0].startswith("step-00000002 is damaged: ")


def test_damaged_checkpoints_are_set_aside_and_not_counted(checkpoints: Checkpoints) -> None:
    intact = save(checkpoints, 1)
    (save(checkpoints, 2) / "state.pt").write_bytes(b"")
    checkpoints.set_aside_after(intact)
    assert names(checkpoints) == ["aside-step-00000002", "step-00000001"]
    save(checkpoints, 2)
    assert names(checkpoints) == ["aside-step-00000002", "step-00000001", "step-00000002"]


def test_no_intact_checkpoint(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest() == (None, [])
    (save(checkpoints, 1) / "state.pt").unlink()
    found, damaged = checkpoints.newest()
    assert found is None
    assert len(damaged) == 1


def test_a_pickle_is_not_run(checkpoints: Checkpoints, tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (Path(tmp_path / "harm"),)  # type: ignore[return-value]

    path = save(checkpoints, 1)
    torch.save({"x": Harm()}, path / "state.pt")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"]["state.pt"] = hashlib.sha256((path / "state.pt").read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"state\.pt has more than plain values"):
        load_checkpoint(path)
    assert not (tmp_path / "harm").exists()


def test_a_failed_write_leaves_the_older_checkpoints(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    save(checkpoints, 1)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        save(checkpoints, 2)
    assert names(checkpoints) == ["step-00000001"]


def test_an_interrupted_write_is_cleaned_up(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    (checkpoints.folder / ".partial-step-00000002").mkdir()
    (checkpoints.folder / ".partial-best-00001.safetensors").write_bytes(b"half")
    assert checkpoints.newest()[0] is not None
    save(checkpoints, 2)
    assert names(checkpoints) == ["step-00000001", "step-00000002"]


def test_saving_again_removes_later_checkpoints(checkpoints: Checkpoints) -> None:
    for step in (1, 2, 3):
        save(checkpoints, step)
    save(checkpoints, 2)
    assert names(checkpoints) == ["step-00000002"]
    assert load_checkpoint(checkpoints.paths()[-1]).state == {"step": 2}


def test_another_format_is_refused(checkpoints: Checkpoints) -> None:
    path = save(checkpoints, 1)
    manifest = json.loads((path / "manifest.json").read_text()) | {"format": 99}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="has format 99, this version reads 1"):
        load_checkpoint(path)
