"""Helpers of the evaluation tests: the command in this process, and a small model that was actually trained."""

import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

from tests.support.training import Ended, train_here
from timm_patchup.cli.evaluate import main
from timm_patchup.evaluation.context import EvalContext
from timm_patchup.evaluation.images import load_images
from timm_patchup.evaluation.models import load_models
from timm_patchup.evaluation.suites import option_values
from timm_patchup.recipe.parts import DataSpec

LIMIT = 300


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="evaluation")


def trained(seed: int = 0, *, mix: str = "none") -> Path:
    """Train on ``fashion_mini`` for a few seconds, once for all tests; more than half of its answers are correct."""
    return _trained(seed, mix)


@lru_cache(maxsize=8)
def _trained(seed: int, mix: str) -> Path:
    sizes = ["--limit", LIMIT, "--epochs", 10, "--batch-size", 20, "--lr", 0.05, "--threads", 1]
    name = f"{mix}_{seed}"
    where = ["--output", _folder().name, "--experiment", name]
    ended = train_here("--recipe", f"fashion_mini_{mix}", *sizes, *where, "--seed", seed)
    assert ended.code == 0, ended.err
    return Path(_folder().name) / name


def forget_accelerator() -> None:
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def evaluate_here(*flags: object) -> Ended:
    """Run the command in this process."""
    forget_accelerator()
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as caught:
        main([*map(str, flags), "--threads", "1"])
    torch.set_num_threads(1)
    return Ended(int(caught.value.code or 0), out.getvalue(), err.getvalue())


def refused(*flags: object) -> str:
    """Run a wrong call and return its error line."""
    ended = evaluate_here(*flags)
    assert ended.code == 2, (ended.out, ended.err)
    assert "Traceback" not in ended.err
    # datasets shows its own progress bars when it first reads a folder.
    lines = [line for line in ended.err.splitlines() if line and "examples" not in line]
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("evaluate.py: ")
    return lines[0]


def make_context(run: Path, *, limit: int = LIMIT, batch_size: int = 100, **options: object) -> EvalContext:
    """Return the context of a run for a suite."""
    forget_accelerator()
    (model,) = load_models([str(run)])
    assert model.recipe is not None
    images = load_images(DataSpec.of(model.recipe), model.images, limit=limit, batch_size=batch_size)
    return EvalContext(model, images, Accelerator(cpu=True), 0, option_values(options))


def with_options(context: EvalContext, **options: object) -> EvalContext:
    return replace(context, options={**context.options, **options})
