"""Wrong calls and existing runs: clear lines, and nothing is written or lost."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.support.datasets_on_disk import write_parquet
from tests.support.training import Train, digests
from timm_patchup.recipe import Recipe
from timm_patchup.runs.folder import OWN_FILES, RunFolder
from timm_patchup.runs.local import LocalPaths


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (["--recipe", "imagenet_hard_patchp", "--lr", "x"], ["did you mean imagenet_hard_patchup", "lr must be"]),
        (
            ["--epoch", "3", "--lr", "-1"],
            ["unknown flag --epoch; did you mean --epochs", "lr must be a number above 0, got -1"],
        ),
        (
            ["some/folder"],
            ["unexpected argument 'some/folder'; give a recipe with --recipe, a data folder with --data-dir"],
        ),
        (["--torchcompile"], ["argument --torchcompile: expected one argument: compile the model with this backend"]),
        (["--track", "nothing"], ["--track must be one or more of tensorboard, trackio, wandb, got 'nothing'"]),
        (["--resume", "--overwrite"], ["--resume and --overwrite exclude each other"]),
        (["--resume", "nowhere"], ["resume nowhere: no such run or checkpoint; give OUTPUT/EXPERIMENT"]),
        (["--experiment", "a/b"], ["--experiment must be a name and not a path"]),
        (["--mix", "soft_patchup", "--mix-sites", "[[1]]"], ["mix_sites"]),
        (["--experiment", ".."], ["--experiment must be a name and not a path"]),
        (["--threads", "0"], ["--threads must be at least 1"]),
        (["--amp", "--amp-dtype", "float16"], ["float16 needs a GPU"]),
        (
            ["--model", "test_vit", "--input-size", "3", "160", "160", "--model-kwargs", "patch_drop_rate=0.5"],
            ["drops different tokens of each sample in training (patch dropout)"],
        ),
        (["--limit", "10"], ["batch_size 20 is larger than the training set of 10 samples"]),
        (["--num-classes", "5"], ["split 'train' has the label 9, but num_classes is 5"]),
        (["--pretrained"], ["cannot load the pretrained weights of preactresnet8"]),
    ],
)
def test_a_wrong_call_prints_one_line_per_problem_and_writes_nothing(
    train: Train, tmp_path: Path, flags: list[str], lines: list[str]
) -> None:
    ended = train(*flags)
    assert ended.code == 2, ended.err
    printed = [line for line in ended.err.splitlines() if line.startswith("train.py: ")]
    printed = [line for line in printed if "is given twice" not in line]  # a note: the last one holds
    assert len(printed) == len(lines)
    for line, shown in zip(lines, printed):
        assert line in shown
    assert "Traceback" not in ended.err
    assert list(tmp_path.iterdir()) == []


def test_pretrained_weights_without_the_hub(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    ended = train("--model", "test_resnet.r160_in1k", "--pretrained")
    assert ended.code == 1, "it may work later"
    (line,) = [line for line in ended.err.splitlines() if line.startswith("train.py: ")]
    assert "test_resnet.r160_in1k: not in the Hub's cache, and the Hub cannot be reached: check the network" in line
    assert line.endswith("or give a local file of them (--pretrained-path)")


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_sharded_training_is_refused(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    ended = train()
    assert ended.code == 2
    assert name in ended.err
    assert list(tmp_path.iterdir()) == []


def test_debug_prints_the_traceback(train: Train) -> None:
    assert "Traceback" in train("--num-classes", 5, "--debug").err


def test_recipes_are_listed_and_shown(train: Train) -> None:
    listed = train("--list-recipes")
    assert listed.code == 0
    assert "cifar100_wrn28_10" in listed.out
    shown = train("--recipe", "imagenet_hard_patchup", "--show-recipe")
    assert "mix_prob: 0.6" in shown.out


def test_the_script_is_the_same_command(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "train.py"
    done = subprocess.run([sys.executable, script, "--list-recipes"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "BENCHMARK_METHOD" in done.stdout


def test_runs_are_not_overwritten(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a").code == 0
    before = digests(tmp_path / "a")
    again = train("--experiment", "a", "--seed", 1)
    assert again.code == 2
    assert "has a finished run" in again.err
    assert digests(tmp_path / "a") == before
    (tmp_path / "a" / "notes.txt").write_text("mine")
    assert train("--experiment", "a", "--seed", 1, "--overwrite").code == 0
    assert digests(tmp_path / "a") != before
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine", "only what a run writes is removed"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("mine")
    foreign = train("--experiment", "b")
    assert foreign.code == 2
    assert "has files that are not from a run" in foreign.err
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["thesis.tex"]
    assert train("--experiment", "b", "--overwrite").code == 0
    assert (tmp_path / "b" / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("removed", range(12))
def test_overwriting_can_be_interrupted_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int) -> None:
    """Killed while it removes the old run, the command can be repeated."""
    folder = RunFolder(tmp_path / "a")
    folder.begin(Recipe(), "a")
    for name in OWN_FILES[1:]:
        folder.write_text(name, "old")
    for name in ("step-00000001", "step-00000002"):
        (folder.checkpoints / name).mkdir()
    for name in ("best-00001.safetensors", ".lock"):
        (folder.checkpoints / name).write_text("old")
    LocalPaths("data").remember(folder)
    left = iter(range(removed))

    class Killed(BaseException):
        pass

    def interrupted(remove: Callable[..., None]) -> Callable[..., None]:
        def run(*args: object, **kwargs: object) -> None:
            if next(left, None) is None:
                raise Killed
            remove(*args, **kwargs)

        return run

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", interrupted(Path.unlink))
        patched.setattr(shutil, "rmtree", interrupted(shutil.rmtree))
        with suppress(Killed):
            folder.clear()
    expected = "finished" if removed == 0 else "new" if removed == 11 else "unfinished"
    assert folder.state() == expected
    folder.refuse_to_overwrite()


def test_files_of_another_tool_are_never_removed(train: Train, tmp_path: Path) -> None:
    for name in ("checkpoints/last.ckpt", "model.safetensors"):
        path = tmp_path / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    ended = train("--experiment", "a", "--overwrite")
    assert ended.code == 2
    assert "a has model.safetensors, checkpoints/, but they are not from a run" in ended.err
    assert (tmp_path / "a" / "model.safetensors").read_text() == "mine"
    assert train("--experiment", "b").code == 0
    (tmp_path / "b" / "checkpoints" / "last.ckpt").write_text("mine")
    assert train("--experiment", "b", "--overwrite").code == 0
    assert (tmp_path / "b" / "checkpoints" / "last.ckpt").read_text() == "mine"


def test_a_finished_run_is_reported_again(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a").code == 0
    before = digests(tmp_path / "a")
    again = train("--experiment", "a", "--resume")
    assert again.code == 0
    assert "is already finished" in again.out
    assert "| a " in again.out
    assert digests(tmp_path / "a") == before


def test_a_resumed_run_keeps_its_recipe(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a").code == 0
    (tmp_path / "a" / "results.json").unlink()
    other = train("--experiment", "a", "--resume", "--lr", 0.2, "--mix-gamma", 0.3)
    assert other.code == 2
    assert "was started with lr 0.1, got 0.2" in other.err
    assert "was started with mix_gamma 0.5, got 0.3" in other.err
    data = write_parquet(tmp_path / "data", {"train": 120, "test": 100})
    elsewhere = train("--experiment", "a", "--resume", "--data-dir", data)
    assert elsewhere.code == 2
    assert "not the data of the run" in elsewhere.err


def when_locked(monkeypatch: pytest.MonkeyPatch, other: Path, target: Path) -> None:
    """Put a file or folder of another process in place between the first look at a run and its lock."""
    locked = RunFolder.locked

    @contextmanager
    def late(folder: RunFolder) -> Iterator[None]:
        other.rename(target)
        with locked(folder):
            yield

    monkeypatch.setattr(RunFolder, "locked", late)


def test_a_run_that_another_process_finished_meanwhile_is_not_trained_again(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("--experiment", "a").code == 0
    before = digests(tmp_path / "a")
    (tmp_path / "a" / "results.json").rename(tmp_path / "results.json")
    when_locked(monkeypatch, tmp_path / "results.json", tmp_path / "a" / "results.json")
    ended = train("--experiment", "a", "--resume")
    assert ended.code == 0, ended.err
    assert "a is already finished" in ended.out
    assert "resumed from" not in ended.out
    assert digests(tmp_path / "a") == before


def test_a_run_that_another_process_began_meanwhile_is_refused(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("--experiment", "other").code == 0
    before = digests(tmp_path / "other")
    when_locked(monkeypatch, tmp_path / "other", tmp_path / "a")
    ended = train("--experiment", "a", "--seed", 1)
    assert ended.code == 2
    assert "a has a finished run" in ended.err
    assert digests(tmp_path / "a") == before
