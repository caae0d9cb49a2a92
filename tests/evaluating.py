"""What the tests of the evaluation share: the command in this process, and one small model that was really trained."""

import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

from timm_patchup.evaluation.bench import Bench, Options
from timm_patchup.evaluation.cli import main
from timm_patchup.evaluation.images import load_images
from timm_patchup.evaluation.subject import load_subjects

from .training import Ended, train_here

LIMIT = 300


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="evaluation")


@lru_cache(maxsize=8)
def trained(seed: int = 0, *flags: str, name: str = "run") -> Path:
    """Train ``fashion_mini_none`` for a few seconds, once for all tests; about half of its answers are right."""
    sizes = ["--limit", LIMIT, "--epochs", 10, "--batch-size", 20, "--lr", 0.05, "--threads", 1]
    where = ["--output", _folder().name, "--experiment", f"{name}_{seed}"]
    ended = train_here("--recipe", "fashion_mini_none", *sizes, *where, "--seed", seed, *flags)
    assert ended.code == 0, ended.err
    return Path(_folder().name) / f"{name}_{seed}"


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
    """Run a call that is wrong and return its one line."""
    ended = evaluate_here(*flags)
    assert ended.code == 2, (ended.out, ended.err)
    lines = ended.err.strip().splitlines()
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("evaluate.py: ")
    return lines[0]


def make_bench(run: Path, *, limit: int = LIMIT, batch_size: int = 100, options: Options | None = None) -> Bench:
    """Put a run on the bench."""
    forget_accelerator()
    (subject,) = load_subjects([str(run)])
    images = load_images(subject.recipe, None, limit=limit, batch_size=batch_size)
    return Bench(subject, images, Accelerator(cpu=True), options or Options())
