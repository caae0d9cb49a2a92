"""Combinations of keys that are each valid but do not go together; one line each, naming the keys.

A key that another one leaves without effect is in ``idle``.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..core.settings import AUTO
from ..errors import brief

LARGEST_SIDE = 16384  # pixels; one such image has 800 MB


def contradictions(recipe: Any) -> list[str]:
    """Return one line per contradiction in a recipe; what is still ``auto`` agrees with everything."""
    checks = (_images, _data, _ranges, _losses, _class_weights, _schedule)
    return [problem for check in checks for problem in check(recipe)]


def image_contradictions(
    input_size: Sequence[int], mean: Sequence[float], std: Sequence[float], crop_pct: float
) -> list[str]:
    """Return one line per key of an image that has the wrong number of values, or makes images too large."""
    if len(input_size) != 3 or input_size[0] not in (1, 3):
        return [f"input_size must be channels (1 or 3), height, width, got {brief(list(input_size))}"]
    too_large = size_problem(input_size, crop_pct)
    return [
        *([too_large] if too_large else []),
        *(
            f"{name} needs {input_size[0]} values, one per channel, got {brief(list(values))}"
            for name, values in (("mean", mean), ("std", std))
            if len(values) != input_size[0]
        ),
    ]


def size_problem(input_size: Sequence[int], crop_pct: float) -> str | None:
    """Return what is wrong with images too large for any memory, before or after the crop; None if they are not."""
    side = max(input_size[1:])
    if side > LARGEST_SIDE:
        return f"input_size must be at most {LARGEST_SIDE} pixels high and wide, got {list(input_size)}"
    if side > LARGEST_SIDE * crop_pct:
        return (
            f"crop_pct {crop_pct:g} resizes images to more than {LARGEST_SIDE} pixels before the crop of {side}: "
            f"give at least {side / LARGEST_SIDE:.2g}"
        )
    return None


def _images(recipe: Any) -> list[str]:
    if {"input_size", "mean", "std"} & set(recipe.unresolved):
        return []
    crop_pct = 1.0 if recipe.crop_pct == AUTO else recipe.crop_pct
    problems = image_contradictions(recipe.input_size, recipe.mean, recipe.std, crop_pct)
    if recipe.lighting and recipe.input_size[0] == 1:
        problems.append(
            f"lighting {recipe.lighting} shifts red, green and blue, but input_size has one channel: set it to 0"
        )
    return problems


def _data(recipe: Any) -> Iterator[str]:
    on_hub = recipe.dataset.startswith("hfds/")
    if not recipe.dataset or (on_hub and not re.fullmatch(r"hfds/[\w.-]+(/[\w.-]+)?", recipe.dataset)):
        yield f"dataset must be fashion_mini or hfds/OWNER/NAME, got {brief(recipe.dataset)}"
    if recipe.select_split not in (None, AUTO) and recipe.val_fraction not in (0, AUTO):
        yield f"select_split {recipe.select_split} chooses the best epoch: set val_fraction to 0"
    if recipe.batch_size % recipe.grad_accum_steps:
        yield f"batch_size {recipe.batch_size} cannot be divided by grad_accum_steps {recipe.grad_accum_steps}"


def _ranges(recipe: Any) -> Iterator[str]:
    for name in ("scale", "ratio"):
        low_high = getattr(recipe, name)
        if len(low_high) != 2 or low_high[0] > low_high[1]:
            yield f"{name} must be a range of two values, low then high, got {brief(low_high)}"


def _losses(recipe: Any) -> Iterator[str]:
    if recipe.aug_splits == 1:
        yield "aug_splits must be 0, or at least 2: one clean split and others to compare with it"
    if recipe.loss == "jsd" and not recipe.aug_splits:
        yield "loss jsd compares the splits of a batch: set aug_splits, to 3 as AugMix does"


def _class_weights(recipe: Any) -> Iterator[str]:
    if recipe.class_weight is not None and recipe.loss in ("bce_softmax", "jsd"):
        yield f"class_weight needs the loss cross_entropy or bce, got {recipe.loss}"
    weights = recipe.class_weight if isinstance(recipe.class_weight, list) else []
    if weights and recipe.num_classes not in (AUTO, len(weights)):
        yield f"class_weight needs {recipe.num_classes} values, one per class, got {len(weights)}"
    if weights and not any(weights):
        yield "class_weight must have a weight above 0"


def _schedule(recipe: Any) -> Iterator[str]:
    if recipe.sched == "multistep" and sorted(set(recipe.decay_milestones)) != recipe.decay_milestones:
        yield f"decay_milestones must increase, got {brief(recipe.decay_milestones)}"
    if recipe.warmup_epochs and recipe.warmup_epochs >= recipe.epochs and not recipe.warmup_prefix:
        yield f"warmup_epochs {recipe.warmup_epochs} must be fewer than epochs {recipe.epochs}"
