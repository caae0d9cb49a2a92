"""The median of the last test epochs: computed again from summary.csv, reported as what it is, exact under resume."""

import json
import statistics
from pathlib import Path

import pytest

from tests.support.training import Train, digests, rows, train_here
from timm_patchup.hub import export
from timm_patchup.runs.folder import RunFolder
from timm_patchup.study.metrics import metrics_of

MEDIAN = ["--val-fraction", 0, "--val-interval", 3, "--epochs", 7, "--test-median", 4]


def test_the_median_is_over_the_last_epochs(train: Train, tmp_path: Path) -> None:
    ended = train("--experiment", "a", *MEDIAN)
    assert ended.code == 0, ended.err
    folder = tmp_path / "a"
    tested = {int(row["epoch"]): row for row in rows(folder) if row["val_error"]}
    assert list(tested) == [3, 4, 5, 6, 7], "every third, and all of the last four"
    last = [float(tested[epoch]["val_error"]) for epoch in (4, 5, 6, 7)]
    by_hand = sum(sorted(last)[1:3]) / 2
    results = json.loads((folder / "results.json").read_text())
    median = results["median"]
    assert (median["error"], median["epochs"]) == (pytest.approx(by_hand), [4, 5, 6, 7])
    assert median["loss"] == pytest.approx(statistics.median(float(tested[e]["val_loss"]) for e in (4, 5, 6, 7)))
    assert median["top1"] == pytest.approx(100 - median["error"])
    assert (results["chosen_on"], results["best_epoch"]) == ("nothing: the last epoch", 7)
    assert results["test"]["error"] == pytest.approx(last[-1]), "the weights are from the last epoch"
    line = f"median of the last 4 epochs, all tested and none chosen: error {by_hand:.2f}"
    assert line in ended.out
    metrics = metrics_of(RunFolder(folder))
    assert (metrics["median_error"], metrics["test_error"]) == (pytest.approx(by_hand), results["test"]["error"])
    card = (export(folder, tmp_path / "export") / "README.md").read_text()
    assert "after the last epoch. The median over the last 4 epochs, all tested and none chosen: error" in card
    assert "evaluated once" not in card


def test_a_resumed_run_has_the_same_median(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "whole", *MEDIAN).code == 0
    assert train("--experiment", "a", *MEDIAN, "--checkpoint-hist", 20).code == 0
    run = tmp_path / "a"
    whole, cut = digests(tmp_path / "whole"), run / "checkpoints" / "step-00000025"
    (run / "results.json").unlink()
    ended = train_here("--resume", cut, "--threads", 1)
    assert ended.code == 0, ended.err
    assert "resumed from step-00000025: epoch 6" in ended.out
    assert {name: whole[name] for name in ("results.json", "summary.csv")} == {
        name: digests(run)[name] for name in ("results.json", "summary.csv")
    }


def test_fewer_epochs_than_asked_for_are_all_there_are(train: Train, tmp_path: Path) -> None:
    ended = train("--experiment", "a", "--val-fraction", 0, "--epochs", 2, "--test-median", 10)
    assert ended.code == 0, ended.err
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert results["median"]["epochs"] == [1, 2]
    assert results["median"]["error"] == pytest.approx(
        statistics.fmean(float(row["val_error"]) for row in rows(tmp_path / "a"))
    )


def test_other_runs_have_no_median(train: Train, tmp_path: Path) -> None:
    assert train("--experiment", "a").code == 0
    assert "median" not in json.loads((tmp_path / "a" / "results.json").read_text())
    assert "median_error" not in metrics_of(RunFolder(tmp_path / "a"))
