"""A recipe is made in one pass: one Recipe, each file read once, and few calls."""

import runpy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.paths import ROOT
from timm_patchup.recipe.compose import list_benchmarks

trace_load_recipe: Callable[..., Any] = runpy.run_path(str(ROOT / "scripts" / "trace_recipe.py"))["trace_load_recipe"]
MOST_CALLS = 1500
CASES: list[tuple[str, dict[str, Any]]] = [
    *((f"{benchmark}_{method}", {}) for benchmark in list_benchmarks() for method in ("hard_patchup", "augmix")),
    ("cifar10_wrn28_10_hard_patchup", {"sched": "tanh", "lr": 0.2, "epochs": 9, "aa": "original"}),
    ("cifar10_wrn28_10_hard_patchup", {"protocol": "authors", "limit": 3}),
    ("cifar10_wrn28_10_hard_patchup", {"model": "resnet18", "mix": "soft_patchup", "mix_sites": ["stem"]}),
    ("imagenet_a2_puzzle_mix", {"mix_transport": False, "opt": "sgd"}),
]


@pytest.mark.parametrize(("source", "overrides"), CASES, ids=lambda value: str(value)[:40])
def test_one_recipe_is_made_and_each_file_is_read_once(source: str, overrides: dict[str, Any]) -> None:
    trace = trace_load_recipe(source, overrides)
    assert trace.recipes == 1
    assert trace.reads
    assert set(trace.reads.values()) == {1}
    assert trace.calls.total() < MOST_CALLS
