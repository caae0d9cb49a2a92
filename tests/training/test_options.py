"""Options of a recipe that change the training: each of them trains, and each has an effect."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.training import TINY, Train, rows, train_here

OPTIONS = {
    "no method": ["--mix", "none"],
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
    "augmented": ["--aa", "rand-m5", "--workers", "1"],
    "splits": ["--aa", "augmix-m3-w3", "--aug-splits", "3", "--loss", "jsd", "--smoothing", "0.1"],
    "splits of timm's crops": ["--color-jitter", "0.4", "--aug-splits", "2", "--crop-padding", "none"],
    "erased": ["--reprob", "0.5", "--recount", "2"],
    "jittered": ["--color-jitter", "0.4"],
    "lit": ["--lighting", "0.1"],
    "upside down": ["--vflip", "1.0"],
    "timm's crops": ["--crop-padding", "none", "--drop", "0.1"],
    "grey": ["--input-size", "1", "28", "28", "--mean", "0.3", "--std", "0.3"],
    "another model": ["--model", "test_resnet", "--mix", "soft_patchup"],
    "seldom validated": ["--val-fraction", "0.1", "--val-interval", "2", "--eval-metric", "loss"],
    "last batch": ["--limit", "95", "--no-drop-last"],
    "held out": ["--val-fraction", "0.1"],
    "all at once": [
        *("--model-ema", "--amp", "--torchcompile", "aot_eager", "--channels-last", "--grad-checkpointing"),
        *("--clip-grad", "1", "--smoothing", "0.1", "--grad-accum-steps", "2", "--warmup-epochs", "1"),
    ],
}


# Options that change how the weights are computed, but not their values.
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
        assert losses[0] == pytest.approx(losses[1], rel=2e-2), "except for rounding, which training amplifies"
    else:
        changed = (tmp_path / "a" / "summary.csv").read_text() != (plain_run / "summary.csv").read_text()
        assert changed, "the option has an effect"


def test_a_run_with_ema_keeps_the_average(train: Train, tmp_path: Path) -> None:
    # Nothing is held out, so the weights of the last epoch are kept.
    assert train("--experiment", "a", *OPTIONS["average"]).code == 0
    assert json.loads((tmp_path / "a" / "results.json").read_text())["weights"] == "average (EMA)"
    newest = sorted((tmp_path / "a" / "checkpoints").glob("step-*"))[-1]
    kept = load_file(tmp_path / "a" / "model.safetensors")
    average, model = load_file(newest / "ema.safetensors"), load_file(newest / "model.safetensors")
    assert all(torch.equal(kept[key], average[key]) for key in kept)
    assert any(not torch.equal(kept[key], model[key]) for key in kept)


@pytest.mark.parametrize("last", [[], ["--limit", "98", "--no-drop-last"]])
def test_accumulation_only_changes_rounding(train: Train, tmp_path: Path, last: list[str]) -> None:
    """Without batch norm, four micro-batches give the gradient of the whole batch, also of shares that differ."""
    flags = ["--mix", "none", "--model", "test_convnext", "--lr", 0.01, *last]
    assert train("--experiment", "whole", *flags).code == 0
    assert train("--experiment", "micro", *flags, "--grad-accum-steps", 4).code == 0
    whole, micro = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "micro"))
    for key in whole:
        torch.testing.assert_close(micro[key], whole[key], rtol=1e-3, atol=1e-5)
