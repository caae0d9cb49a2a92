"""Training through the command: what a run leaves behind, what it refuses, how it stops, that processes agree."""

import csv
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support.datasets_on_disk import write_image_folder, write_parquet
from tests.support.training import TINY, TWO_PROCESSES, Ended, command, digests, environment, launch, train_here
from timm_patchup.data.loader import load_data
from timm_patchup.recipe import load_recipe
from timm_patchup.training.evaluate import evaluate

Train = Callable[..., Ended]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train in this process, a tiny run of the default into tmp_path unless told otherwise."""

    def run(*flags: object) -> Ended:
        return train_here(*TINY, "--output", tmp_path, *flags)

    return run


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open() as file:
        return list(csv.DictReader(file))


def test_what_a_run_leaves_behind(train: Train, tmp_path: Path) -> None:
    ended = train("--experiment", "a")
    assert ended.code == 0, ended.err
    folder = tmp_path / "a"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "curves.png",
        "model.safetensors",
        "recipe.yaml",
        "results.json",
        "summary.csv",
    ]
    assert "batch 20 = 1 process x 20 images, 5 updates an epoch" in ended.out
    assert "| a " in ended.out
    assert [row["epoch"] for row in rows(folder)] == ["1", "2"]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((folder / "results.json").read_text())
    assert results["test"]["count"] == 100
    assert results["test"]["error"] == pytest.approx(100 - results["test"]["top1"])
    best = max(rows(folder), key=lambda row: (float(row["val_top1"]), int(row["epoch"])))
    assert str(results["best_epoch"]) == best["epoch"], "the latest of the best epochs on validation"


def test_the_weights_are_those_that_were_tested(train: Train, tmp_path: Path) -> None:
    """Load them with plain timm, evaluate by hand, and compare with the results of the run."""
    assert train("--experiment", "a").code == 0
    recipe = load_recipe(tmp_path / "a" / "recipe.yaml")
    model = timm.create_model(recipe.model, num_classes=10, **recipe.model_kwargs)
    model.load_state_dict(load_file(tmp_path / "a" / "model.safetensors"))
    data = load_data(recipe)
    images = data.test.images.float() / 255
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (recipe.mean, recipe.std))
    with torch.inference_mode():
        output = model.eval()((images - mean) / std).double()
    labels = data.test.labels
    right = (output.argmax(dim=1) == labels).double().mean().item()
    loss = -output.log_softmax(dim=1)[torch.arange(len(labels)), labels].mean().item()
    test = json.loads((tmp_path / "a" / "results.json").read_text())["test"]
    assert test["top1"] == pytest.approx(100 * right)
    assert test["loss"] == pytest.approx(loss, rel=1e-5)


def test_the_recipe_of_a_run_repeats_it(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a", "--seed", 3, "--mix-gamma", 0.4).code == 0
    from_file = ["--recipe", tmp_path / "a" / "recipe.yaml", "--experiment", "b"]
    assert train(*from_file).code == 0
    first, second = digests(tmp_path / "a"), digests(tmp_path / "b")
    assert first.pop("recipe.yaml") != second.pop("recipe.yaml"), "its first line names the run"
    assert first == second
    assert train("--experiment", "c", "--seed", 4, "--mix-gamma", 0.4).code == 0
    assert digests(tmp_path / "c")["model.safetensors"] != first["model.safetensors"]


def test_no_file_tells_where_it_was_made(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_parquet(tmp_path / "telling-name", {"train": 100, "test": 40})
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    assert train("--experiment", "a", "--data-dir", folder).code == 0
    secrets = [str(tmp_path), "telling-name", "hf_secret", str(Path.home()), os.uname().nodename]
    files = [path for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(files) >= 9
    for path in files:
        content = path.read_bytes()
        for secret in secrets:
            if len(secret) > 5:
                assert secret.encode() not in content, (path.name, secret)


# What trains


OPTIONS = {
    "average": ["--model-ema", "--model-ema-decay", "0.9"],
    "average with warm-up": ["--model-ema", "--model-ema-warmup"],
    "bf16": ["--amp"],
    "compiled": ["--torchcompile", "aot_eager"],
    "channels_last": ["--channels-last"],
    "checkpointing": ["--grad-checkpointing"],
    "clipped": ["--clip-grad", "0.1"],
    "clipped values": ["--clip-grad", "0.1", "--clip-mode", "value"],
    "agc": ["--clip-grad", "0.01", "--clip-mode", "agc"],
    "adamw on updates": ["--opt", "adamw", "--lr", "1e-3", "--sched-on-updates", "--warmup-epochs", "1"],
    "step": ["--sched", "step", "--decay-epochs", "1"],
    "constant": ["--sched", "none"],
    "smoothed bce": ["--smoothing", "0.1", "--loss", "bce"],
    "authors' loss": ["--loss", "bce_softmax"],
    "augmented": ["--aa", "rand-m5", "--reprob", "0.5", "--color-jitter", "0.4", "--workers", "1"],
    "timm's crops": ["--crop-padding", "none", "--drop", "0.1"],
    "grey": ["--input-size", "1", "28", "28", "--mean", "0.3", "--std", "0.3"],
    "another model": ["--model", "test_resnet", "--mix", "soft_patchup"],
    "seldom validated": ["--val-interval", "2", "--eval-metric", "loss"],
    "nothing held out": ["--val-fraction", "0"],
    "all at once": [
        *("--model-ema", "--amp", "--torchcompile", "aot_eager", "--channels-last", "--grad-checkpointing"),
        *("--clip-grad", "1", "--smoothing", "0.1", "--grad-accum-steps", "2", "--warmup-epochs", "1"),
    ],
}


# Options that change how the weights are computed, and not what they are.
SAME_WEIGHTS = {"compiled", "channels_last", "checkpointing"}


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    assert train_here(*TINY, "--output", folder, "--experiment", "a").code == 0
    return folder / "a"


@pytest.mark.parametrize("name", OPTIONS)
def test_options_train(train: Train, tmp_path: Path, plain_run: Path, name: str) -> None:
    ended = train("--experiment", "a", *OPTIONS[name])
    assert ended.code == 0, ended.err
    losses = [[float(row["train_loss"]) for row in rows(folder)] for folder in (tmp_path / "a", plain_run)]
    assert all(math.isfinite(loss) for loss in losses[0])
    if name in SAME_WEIGHTS:
        assert losses[0] == pytest.approx(losses[1], rel=2e-2), "but for rounding, which training enlarges"
    else:
        changed = (tmp_path / "a" / "summary.csv").read_text() != (plain_run / "summary.csv").read_text()
        assert changed, "the option was not without effect"


def test_what_an_average_run_keeps_is_the_average(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a", *OPTIONS["average"]).code == 0
    assert json.loads((tmp_path / "a" / "results.json").read_text())["weights"] == "average (EMA)"
    newest = sorted((tmp_path / "a" / "checkpoints").glob("step-*"))[-1]
    kept, best = load_file(tmp_path / "a" / "model.safetensors"), rows(tmp_path / "a")
    if float(best[1]["val_top1"]) > float(best[0]["val_top1"]):
        average, model = load_file(newest / "ema.safetensors"), load_file(newest / "model.safetensors")
        assert all(torch.equal(kept[key], average[key]) for key in kept)
        assert any(not torch.equal(kept[key], model[key]) for key in kept)


def test_nothing_is_chosen_where_nothing_is_held_out(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a", "--val-fraction", 0, "--epochs", 3).code == 0
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert (results["best_epoch"], results["chosen_on"]) == (3, "nothing: the last epoch")
    newest = sorted((tmp_path / "a" / "checkpoints").glob("step-*"))[-1]
    kept, last = load_file(tmp_path / "a" / "model.safetensors"), load_file(newest / "model.safetensors")
    assert all(torch.equal(kept[key], last[key]) for key in kept)


def test_image_folders_train(train: Train, tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "images", {"train": 60, "val": 9})
    flags = ["--data-dir", folder, "--num-classes", 3, "--crop-padding", "none", "--val-split", "validation"]
    ended = train("--experiment", "a", *flags, "--lighting", 0.1, "--color-jitter", 0.4)
    assert ended.code == 0, ended.err
    assert "54 train, 6 val (held out of train), 9 test" in ended.out


def test_accumulation_changes_nothing_but_rounding(train: Train, tmp_path: Path) -> None:
    """Without norms over the batch, four pieces of a batch give the gradient of the whole."""
    flags = ["--mix", "none", "--model", "test_convnext", "--lr", 0.01]
    assert train("--experiment", "whole", *flags).code == 0
    assert train("--experiment", "pieces", *flags, "--grad-accum-steps", 4).code == 0
    whole, pieces = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "pieces"))
    for key in whole:
        torch.testing.assert_close(pieces[key], whole[key], rtol=1e-3, atol=1e-5)


def test_metrics_count_every_sample_once() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    images, labels = torch.randn(11, 1, 2, 2), torch.randint(3, (11,))
    metrics = evaluate(model, [(images[:7], labels[:7]), (images[7:], labels[7:])], Accelerator(cpu=True))
    output = model(images).double()
    assert metrics.count == 11
    assert metrics.top1 == pytest.approx(100 * (output.argmax(1) == labels).double().mean().item())
    assert metrics.top5 == 100.0, "among three classes"
    assert metrics.loss == pytest.approx(torch.nn.functional.cross_entropy(output, labels).item(), rel=1e-6)
    assert model.training


def test_trackers_get_every_epoch(train: Train, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train("--experiment", "a", "--track", "tensorboard").code == 0
    logs = next((tmp_path / "a" / "logs").rglob("events.out.tfevents.*")).parent
    events = EventAccumulator(str(logs))
    events.Reload()
    written = [float(row["train_loss"]) for row in rows(tmp_path / "a")]
    assert [event.value for event in events.Scalars("train_loss")] == pytest.approx(written)
    assert len(events.Scalars("test_error")) == 1


# What is refused


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
        (["--limit", "10"], ["batch_size 20 is more than the 10 samples to train on"]),
        (["--num-classes", "5"], ["split 'train' holds the label 9, num_classes is 5"]),
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


def test_a_loss_that_is_not_finite_stops_the_run(train: Train, tmp_path: Path) -> None:
    ended = train("--experiment", "a", "--lr", 1e12, "--warmup-epochs", 1, "--warmup-lr", 1e-3, "--epochs", 3)
    assert ended.code == 1
    assert "the loss is not finite at update " in ended.err
    assert "last good checkpoint: step-00000005" in ended.err
    assert sorted(path.name for path in (tmp_path / "a" / "checkpoints").glob("step-*")) == ["step-00000005"]


# How it stops


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_to_go_on_from(
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
    """A limit on the size of files stands in for a full disk: the write itself fails, wherever it comes."""
    flags = [*TINY, "--output", tmp_path, "--experiment", "a"]
    done = subprocess.run(
        command(*flags, "--epochs", 3, "--opt", "adamw", "--model-ema", "--checkpoint-hist", 5),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)),
    )
    assert done.returncode == 1
    assert "train.py: cannot write: File too large; the last good checkpoint stands" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "a" / "checkpoints").glob("*partial*"))


# Several processes


def test_two_processes_equal_one(tmp_path: Path) -> None:
    """The same batches, and without norms over the batch the same weights but for rounding."""
    flags = [*TINY, "--mix", "none", "--model", "test_convnext", "--lr", 0.01]
    flags += ["--output", tmp_path, "--reprob", 0.5]
    one = launch(*flags, "--experiment", "one", launcher=True)
    two = launch(*flags, "--experiment", "two", processes=2)
    assert (one.code, two.code) == (0, 0), two.err
    assert "batch 20 = 2 processes x 10 images, 5 updates an epoch" in two.out
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for key in first:
        torch.testing.assert_close(second[key], first[key], rtol=1e-3, atol=1e-5)
    for mine, theirs in zip(rows(tmp_path / "one"), rows(tmp_path / "two")):
        assert {key: float(mine[key]) for key in mine} == pytest.approx(
            {key: float(theirs[key]) for key in theirs}, rel=1e-3
        )
    results = [json.loads((tmp_path / name / "results.json").read_text())["test"] for name in ("one", "two")]
    assert results[0] == pytest.approx(results[1], rel=1e-4)
    assert results[1]["count"] == 100


def test_an_odd_batch_cannot_be_shared_by_two(tmp_path: Path) -> None:
    ended = launch(*TINY, "--batch-size", 25, "--output", tmp_path, processes=2)
    assert ended.code != 0
    assert (
        "batch_size 25 cannot be divided by 2 processes x 1 accumulation steps: give --batch-size 24 or 26" in ended.err
    )
    assert list(tmp_path.iterdir()) == []


def test_processes_that_do_not_know_of_each_other_are_refused(tmp_path: Path) -> None:
    """A script that does not take the CPU itself gets two lone processes from this launch: seen, and refused."""
    script = tmp_path / "script.py"
    script.write_text(
        "from timm_patchup.training import build\n"
        "from timm_patchup.training.cli import main\n"
        "build._has_accelerator = lambda: True\n"
        f"main({[*TINY, '--output', str(tmp_path / 'out')]!r})\n"
    )
    words = [sys.executable, "-m", "accelerate.commands.launch", *TWO_PROCESSES, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode != 0
    assert "2 processes were started that do not know of each other (Accelerate sees 1)" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_script_is_the_same_command(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "train.py"
    done = subprocess.run([sys.executable, script, "--list-recipes"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "BENCHMARK_METHOD" in done.stdout


def test_weights_hold_no_metadata_of_the_machine(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a").code == 0
    with safe_open(tmp_path / "a" / "model.safetensors", "pt") as file:
        assert set(file.metadata() or {}) <= {"format"}
