"""Calls that are wrong and runs that are there already: clear lines, and nothing is written or lost."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.datasets_on_disk import write_parquet
from tests.support.training import Train, digests


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (["--recipe", "imagenet_hard_patchp", "--lr", "x"], ["did you mean imagenet_hard_patchup", "lr must be"]),
        (
            ["--epoch", "3", "--lr", "-1"],
            ["unknown flag --epoch; did you mean --epochs", "lr must be a number, above 0"],
        ),
        (["some/folder"], ["unexpected argument 'some/folder'; a data folder is given as --data-dir"]),
        (["--track", "nothing"], ["--track nothing: choose from tensorboard, trackio, wandb"]),
        (["--resume", "--overwrite"], ["--resume and --overwrite contradict each other"]),
        (["--resume", "nowhere"], ["--resume nowhere: no such run or checkpoint"]),
        (["--experiment", "a/b"], ["--experiment is a name, not a path"]),
        (["--threads", "0"], ["--threads must be at least 1"]),
        (["--amp", "--amp-dtype", "float16"], ["float16 needs a GPU"]),
        (["--model", "vit_tiny_patch16_224", "--input-size", "3", "224", "224"], ["gives tokens (B, N, C)"]),
        (["--limit", "10"], ["batch_size 20 is larger than the training set of 10 samples"]),
        (["--num-classes", "5"], ["split 'train' has the label 9, but num_classes is 5"]),
        (["--pretrained"], ["the pretrained weights of preactresnet8 cannot be loaded"]),
    ],
)
def test_a_wrong_call_gets_clear_lines_and_writes_nothing(
    train: Train, tmp_path: Path, flags: list[str], lines: list[str]
) -> None:
    ended = train(*flags)
    assert ended.code == 2, ended.err
    complaints = [line for line in ended.err.splitlines() if line.startswith("train.py: ")]
    assert len(complaints) == len(lines)
    for line, complaint in zip(lines, complaints):
        assert line in complaint
    assert "Traceback" not in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_sharded_training_is_refused(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    ended = train()
    assert ended.code == 2
    assert name in ended.err
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where(train: Train) -> None:
    assert "Traceback" in train("--num-classes", 5, "--debug").err


def test_lists_and_shows(train: Train) -> None:
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


def test_runs_are_not_written_over(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a").code == 0
    before = digests(tmp_path / "a")
    again = train("--experiment", "a", "--seed", 1)
    assert again.code == 2
    assert "holds a finished run" in again.err
    assert digests(tmp_path / "a") == before
    (tmp_path / "a" / "notes.txt").write_text("mine")
    assert train("--experiment", "a", "--seed", 1, "--overwrite").code == 0
    assert digests(tmp_path / "a") != before
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine", "only what a run writes is removed"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("mine")
    foreign = train("--experiment", "b")
    assert foreign.code == 2
    assert "holds files of something else" in foreign.err
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["thesis.tex"]
    assert train("--experiment", "b", "--overwrite").code == 0
    assert (tmp_path / "b" / "thesis.tex").read_text() == "mine"


def test_files_of_another_tool_are_never_removed(train: Train, tmp_path: Path) -> None:
    for name in ("checkpoints/last.ckpt", "model.safetensors"):
        path = tmp_path / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    ended = train("--experiment", "a", "--overwrite")
    assert ended.code == 2
    assert "a holds no run, but model.safetensors, checkpoints/ of something else" in ended.err
    assert (tmp_path / "a" / "model.safetensors").read_text() == "mine"
    assert train("--experiment", "b").code == 0
    (tmp_path / "b" / "checkpoints" / "last.ckpt").write_text("mine")
    assert train("--experiment", "b", "--overwrite").code == 0
    assert (tmp_path / "b" / "checkpoints" / "last.ckpt").read_text() == "mine"


def test_a_finished_run_is_told_again(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a").code == 0
    before = digests(tmp_path / "a")
    again = train("--experiment", "a", "--resume")
    assert again.code == 0
    assert "is finished already" in again.out
    assert "| a " in again.out
    assert digests(tmp_path / "a") == before


def test_a_resumed_run_keeps_its_recipe(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a").code == 0
    (tmp_path / "a" / "results.json").unlink()
    other = train("--experiment", "a", "--resume", "--lr", 0.2, "--mix-gamma", 0.3)
    assert other.code == 2
    assert "was started with lr 0.1, not 0.2" in other.err
    assert "was started with mix_gamma 0.5, not 0.3" in other.err
    data = write_parquet(tmp_path / "data", {"train": 120, "test": 100})
    elsewhere = train("--experiment", "a", "--resume", "--data-dir", data)
    assert elsewhere.code == 2
    assert "the data is not that of the run" in elsewhere.err
