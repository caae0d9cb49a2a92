"""The lines of cost and expected numbers in the headers of recipes/benchmarks/, which ``update_tables.py`` writes.

A cost is measured here (the runs in recipes/results/), the paper's, or computed; an error is the paper's, another
source's, or measured here. A line says which.
"""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from textwrap import wrap

import torch
from torch.utils.flop_counter import FlopCounterMode

from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.study.paper import PAPER, paper_tables
from timm_patchup.study.seeds import SeedRow, read_seeds
from timm_patchup.training.build import build_model

ROOT = Path(__file__).resolve().parents[1]
COST, EXPECT, GOES_ON = "# Cost", "# Test error", "#     "
# Images of the train splits; the size of your own is not known.
IMAGES = {
    "fashion_mini": 1000,
    "hfds/uoft-cs/cifar10": 50_000,
    "hfds/uoft-cs/cifar100": 50_000,
    "hfds/ufldl-stanford/svhn": 73_257,
    "hfds/zh-plus/tiny-imagenet": 100_000,
    "hfds/ILSVRC/imagenet-1k": 1_281_167,
}
METHODS = {
    "none": "none",
    "cutmix": "CutMix",
    "manifold_mixup": "Manifold Mixup",
    "soft_patchup": "soft PatchUp",
    "hard_patchup": "hard PatchUp",
}


def update_header(text: str, benchmark: str) -> str:
    """Return the file of a benchmark with its lines of cost and expected numbers after its first commands."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith((COST, EXPECT))), len(lines))
    last = next((i for i in range(first, len(lines)) if not lines[i].startswith((COST, EXPECT, GOES_ON))), first)
    del lines[first:last]
    commands = [i for i, line in enumerate(lines) if line.startswith(("#   python", "#   accelerate"))]
    lines[commands[-1] + 1 : commands[-1] + 1] = header_lines(benchmark)
    return "\n".join(lines) + "\n"


def header_lines(benchmark: str) -> list[str]:
    """Return the lines of one benchmark; none if neither cost nor numbers are known."""
    recipe = load_recipe(f"{benchmark}_none")
    measured = [row for row in _measured() if row.place[0] == benchmark and not row.place[2]]
    found = []
    costs = [*_minutes(measured), *_hours(benchmark), *_computed(recipe)]
    if costs:
        found += _wrapped(f"{COST}: {'; '.join(costs)}.")
    if errors := _published(benchmark, recipe) or _errors(measured):
        found += _wrapped(f"{EXPECT} {errors}.")
    return found


def _measured() -> Iterable[SeedRow]:
    for path in sorted((ROOT / "recipes" / "results").glob("*.csv")):
        yield from read_seeds(path).values()


def _minutes(rows: Iterable[SeedRow]) -> list[str]:
    known = [row.cpu_minutes for row in rows if row.cpu_minutes is not None and row.place[1] != "puzzle_mix"]
    return [f"{fmean(known):.0f} CPU minutes, measured here with its evaluation"] if known else []


def _hours(benchmark: str) -> list[str]:
    entries = paper_tables()["tab:tbl-running_time"]["entries"]
    hours = {e["method"]: e["mean"] for e in entries if benchmark in _listed(e["benchmark"])}
    return [f"{hours['patchup']} hours on one V100 with PatchUp, the paper's"] if hours else []


def _computed(recipe: Recipe) -> list[str]:
    if recipe.dataset not in IMAGES:
        return []
    images = recipe.num_classes * (recipe.train_per_class or 0) or IMAGES[recipe.dataset] * (1 - recipe.val_fraction)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        build_model(recipe)(torch.zeros(1, *recipe.input_size))
    total = 3 * counter.get_total_flops() * images * max(1, recipe.aug_splits) * recipe.epochs
    return [f"{total:.1e} floating point operations, computed as 3 x forward x images x epochs"]


def _published(benchmark: str, recipe: Recipe) -> str:
    """Return the published errors; tables with more digits come later in the file."""
    errors: dict[str, str] = {}
    sources: dict[str, None] = {}
    for table in paper_tables().values():
        for entry in table["entries"]:
            is_error = entry.get("metric") in ("test_error", "median_error")
            as_here = entry.get("setting") in (None, f"{recipe.epochs} epochs")
            if is_error and as_here and entry.get("method") in METHODS and benchmark in _listed(entry.get("benchmark")):
                std = f" ± {entry['std']}" if entry.get("std") is not None else ""
                errors[entry["method"]] = f"{entry['mean']}{std}"
                sources[table.get("source", PAPER)] = None
    shown = ", ".join(f"{METHODS[name]} {errors[name]}" for name in METHODS if name in errors)
    whose = " and ".join("the paper's, ± its standard deviation" if name == PAPER else f"{name}'s" for name in sources)
    return f"in %: {shown} ({whose})" if errors else ""


def _errors(rows: Iterable[SeedRow]) -> str:
    errors: dict[str, list[float]] = {}
    for row in rows:
        errors.setdefault(row.place[1], []).append(row.values["test_error"])
    shown = [
        f"{title} {fmean(errors[name]):.1f} ({min(errors[name]):.1f} to {max(errors[name]):.1f})"
        for name, title in METHODS.items()
        if len(errors.get(name, ())) > 1
    ]
    count = min((len(values) for values in errors.values() if len(values) > 1), default=0)
    return f"in %: {', '.join(shown)} (mean and range of at least {count} seeds, measured here)" if shown else ""


def _listed(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _wrapped(text: str) -> list[str]:
    return wrap(text, 118, subsequent_indent=GOES_ON, break_on_hyphens=False)
