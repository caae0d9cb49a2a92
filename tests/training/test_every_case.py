"""Every method and option of the table in ``tests/methods/every_method.py``, through a whole run and a resume."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.methods.every_method import CASES, OPTIONS
from tests.support.training import digests, launch, rows, train_here
from timm_patchup.cli.study_commands import flags
from timm_patchup.recipe import load_recipe

# Two epochs of two updates with two micro-batches each: a checkpoint in the middle of the second epoch.
SHORT = ["--limit", 40, "--batch-size", 16, "--epochs", 2, "--threads", 1, "--grad-accum-steps", 2, "--model-ema"]
SHORT += ["--checkpoint-steps", 1, "--checkpoint-hist", 9]

VIT = {"img_size": 32, "patch_size": 8, "depth": 4, "embed_dim": 24, "num_heads": 2}
# What only a recipe can state; test_aug_splits.py and test_outside.py have splits and methods from outside.
MORE: dict[str, dict[str, Any]] = {
    "off": {"mix": "cutmix", "mixup_off_epoch": 1},
    "rising": {"mix": "hard_patchup", "mixup_warmup_epochs": 2, "mixup_warmup": ["prob", "gamma"]},
    "several": {"mix": ["dropblock", "cutmix"], "mixup_warmup_epochs": 1, "mixup_warmup": ["drop_prob"]},
    "tokens": {
        "mix": ["soft_patchup", "cutmix"],
        "mix_block_size": 2,
        "model": "vit_tiny_patch16_224",
        "model_kwargs": VIT,
    },
    "unmixed_too": {"mix": "puzzle_mix", "mix_clean_lam": 0.5},
}


def keys_of(case: str) -> dict[str, Any]:
    """Return the keys of a recipe for a case, small enough for small images."""
    if case in MORE:
        return MORE[case]
    names, settings = OPTIONS.get(case, ([case], {}))
    plain = {f"mix_{key}": value for key, value in settings.items() if key not in names}
    own = {key: value for key, value in settings.items() if key in names}
    return {"mix": names, **plain, **({"mix_settings": own} if own else {})}


@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_a_run_with_accumulation_resumes_exactly(case: str, tmp_path: Path) -> None:
    keys = keys_of(case)
    words = [*SHORT, "--output", tmp_path, *flags(keys)]
    ended = train_here(*words, "--experiment", "whole")
    assert ended.code == 0, ended.err
    recipe = load_recipe(tmp_path / "whole" / "recipe.yaml")
    assert recipe.method == load_recipe("fashion_mini_none", keys).method
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    (tmp_path / "again" / "results.json").unlink()
    ended = train_here("--resume", tmp_path / "again" / "checkpoints" / "step-00000003", "--threads", 1)
    assert ended.code == 0, ended.err
    assert "resumed from step-00000003: epoch 2, update 1" in ended.out
    assert digests(tmp_path / "again") == digests(tmp_path / "whole")


def test_a_schedule_changes_a_run_from_its_epoch_on(tmp_path: Path) -> None:
    for name, more in (("plain", []), ("off", ["--mixup-off-epoch", 1]), ("never", ["--mixup-off-epoch", 2])):
        ended = train_here(*SHORT, "--output", tmp_path, "--experiment", name, "--mix", "cutmix", *more)
        assert ended.code == 0, ended.err
    plain, off, never = (rows(tmp_path / name) for name in ("plain", "off", "never"))
    assert off[0] == plain[0]
    assert off[1] != plain[1]
    assert off[1]["train_loss"] == off[1]["train_nll"], "not mixed"
    assert never == plain


def test_two_processes_resume_several_methods_exactly(tmp_path: Path) -> None:
    """With a member that runs the model twice more (Puzzle Mix) and each process taking its own turns."""
    keys = keys_of("one_of_all_kinds")
    keys["mix_settings"] = {**keys["mix_settings"], "puzzle_mix": {"clean_lam": 0.5}}
    words = [*SHORT, "--output", tmp_path, *flags(keys), "--experiment", "whole"]
    ended = launch(*words, processes=2)
    assert ended.code == 0, ended.err
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    (tmp_path / "again" / "results.json").unlink()
    ended = launch("--resume", tmp_path / "again" / "checkpoints" / "step-00000003", "--threads", 1, processes=2)
    assert ended.code == 0, ended.err
    assert digests(tmp_path / "again") == digests(tmp_path / "whole")


def test_other_methods_are_refused_on_resume(tmp_path: Path) -> None:
    both = ["--mix", "cutmix", "mixup"]
    assert train_here(*SHORT, "--output", tmp_path, "--experiment", "a", *both).code == 0
    (tmp_path / "a" / "results.json").unlink()
    for other, lines in (
        (["--mix-weights", 2, 1], ["mix_weights [1.0, 1.0], got [2.0, 1.0]"]),
        (["--mix-settings", "cutmix.alpha=0.5"], ["mix_settings cutmix.alpha 1.0, got 0.5"]),
        (["--mix-prob", 0.5], ["mix_settings cutmix.prob 0.4, got 0.5", "mix_settings mixup.prob 1.0, got 0.5"]),
        (["--mix", "cutmix", "--mix-alpha", 0.5], ["mix ['cutmix', 'mixup'], got 'cutmix'"]),
    ):
        ended = train_here("--resume", tmp_path / "a", "--threads", 1, *both, *other)
        assert ended.code == 2
        found = [line for line in ended.err.splitlines() if "is given twice" not in line]
        assert len(found) == len(lines), "the settings that differ, and no others"
        assert all(
            f"was started with {line}: leave it out to resume, or start a new run" in ended.err for line in lines
        ), ended.err
    assert train_here("--resume", tmp_path / "a", "--threads", 1, *both).code == 0
