"""Helpers of the study tests: the command in this process, and finished runs with made-up numbers."""

from pathlib import Path
from typing import Any

import pytest

from timm_patchup.cli.study import main
from timm_patchup.runs.folder import RunFolder
from timm_patchup.study import Run
from timm_patchup.study.options import StudyOptions, run_recipe

# benchmarks x methods x settings x seeds
COUNTS = {
    "activations": 5,
    "affine": 2 * 6 * 5,
    "alpha": (5 + 4 + 3 * 3) * 3,
    "attacks": 9 * 5,
    "cifar": 6 * 9 * 5,
    "cifar10_scarce": 5 * 8,
    "cifar10_scarce_preactresnet18": 5 * 8,
    "corruptions": 3 * 7 * 5,
    "fashion_mini": 9 * 10 + 3,
    "fashion_mini_coverage": 2 * 10,
    "fashion_mini_step": 3 * 10,
    "fashion_mini_third": 3 * 10,
    "fgsm": 9 * 6 * 5,
    "finetune": 7 * 3,
    "finetune_choice": 2 * 3 * 8,
    "gamma_block": (4 * 4 + 5 * 4 + 5) * 3,
    "geometry": 3,
    "imagenet": 9,
    "loss_terms": (1 + 2 * 3) * 5,
    "openmixup": (3 + 1) * 7 * 3,
    "sites": 5 * 5,
    "svhn": 3 * 9 * 5,
    "tiny_imagenet": 3 * 9 * 5,
    "training_time": 7 * 3 * 3,
}


def study_here(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return int(caught.value.code or 0)


def finish(folder: Path, run: Run, options: StudyOptions, *, error: float, loss: float = 1.0, val: float = 0.0) -> None:
    """Write a run as the training command leaves it, with made-up numbers: epoch 2 of 3 was the best."""
    run_folder = RunFolder(folder / "runs" / run.name)
    run_folder.begin(run_recipe(run, options), run.name)
    row: dict[str, Any] = dict.fromkeys(("lr", "train_loss", "val_loss", "val_top1", "val_top5"), 0.0)
    run_folder.write_summary([{**row, "epoch": e, "val_error": val if e == 2 else 99.0} for e in (1, 2, 3)])
    test = {"error": error, "loss": loss, "top1": 100 - error, "top5": 90.0, "count": 10}
    run_folder.write_results(
        {"test": test, "best_epoch": 2, "epochs": 3, "chosen_on": "validation", "weights": "model"}
    )
