"""The rules of a recipe: what a key needs to have an effect, and which keys contradict each other.

A need is what ``setting(..., needs=...)`` takes: a function of all values that returns None if it is met, otherwise why
the key has no effect, as the end of the sentence "KEY has no effect ...".
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from timm.optim import get_optimizer_info

from ..core.settings import AUTO, Need
from ..errors import brief

LARGEST_SIDE = 16384  # pixels; one such image has 800 MB
DECAYING = ("cosine", "tanh", "poly")
SCHEDULED = (*DECAYING, "step", "multistep")
# The keys that hold out images, and the values that do not.
_HOLDING_OUT = {"val_fraction": "0", "val_per_class": "none", "select_split": "none"}
_DRAWING = ("val_fraction", "val_per_class", "test_fraction", "train_per_class", "train_at_most", "limit")


def schedule(*names: str) -> Need:
    needed = f"it needs {' or '.join(names)}"
    return lambda keys: None if keys.sched in names else f"with the schedule {keys.sched}: {needed}"


def optimizer_with(what: str) -> Need:
    """Need an optimizer that has this argument: ``"betas"``, ``"eps"`` or ``"momentum"``."""

    def need(keys: Any) -> str | None:
        try:
            known = get_optimizer_info(keys.opt)
        except (AttributeError, KeyError, TypeError, ValueError):  # refused where it is checked or made
            return None
        return None if getattr(known, f"has_{what}") else f"with the optimizer {keys.opt}, which has no {what}"

    return need


def loss(name: str) -> Need:
    return lambda keys: None if keys.loss == name else f"with the loss {keys.loss}: it needs {name}"


def a_mix(keys: Any) -> str | None:
    return "with the mix none" if keys.mix == "none" else None


def timms_crop(keys: Any) -> str | None:
    why = "on small images cropped from padding: crop_padding none takes timm's random crop"
    return None if keys.crop_padding is None else why


def no_policy(keys: Any) -> str | None:
    is_free = keys.aa is None or "3a" in str(keys.aa)
    return None if is_free else "next to aa, as in timm: set color_jitter to 0"


def an_augmentation(keys: Any) -> str | None:
    return None if keys.aa or keys.color_jitter else "without aa or color_jitter: all splits would be the same"


def held_out(keys: Any) -> str | None:
    return None if _holding_out(keys) else "without val_fraction, val_per_class or select_split"


def nothing_held_out(keys: Any) -> str | None:
    ways = [f"{key} to {_HOLDING_OUT[key]}" for key in _holding_out(keys)]
    return f"next to held-out images: set {' and '.join(ways)}" if ways else None


def a_chosen_epoch(keys: Any) -> str | None:
    why = None if keys.best_on_test else held_out(keys)
    return why and f"{why}: no epoch is chosen"


def no_chosen_epoch(keys: Any) -> str | None:
    return "next to best_on_test" if keys.best_on_test else nothing_held_out(keys)


def a_subset(keys: Any) -> str | None:
    names = f"{', '.join(_DRAWING[:-1])} and {_DRAWING[-1]}"
    return None if any(getattr(keys, key) for key in _DRAWING) else f"without {names}: all samples are used"


def no_number_per_class(keys: Any) -> str | None:
    return "next to val_per_class" if keys.val_fraction and keys.val_per_class else None


def off(key: str) -> Need:
    """Need another key to be off; what is still ``auto`` is found out next to it."""
    return lambda keys: None if getattr(keys, key) in (None, 0, AUTO) else f"next to {key}"


def _holding_out(keys: Any) -> list[str]:
    return [key for key in _HOLDING_OUT if getattr(keys, key) not in (None, 0)]


def contradictions(recipe: Any) -> Iterator[str]:
    """Yield one line per contradiction in a recipe; what is still ``auto`` agrees with everything."""
    if not {"input_size", "mean", "std"} & set(recipe.unresolved):
        crop_pct = 1.0 if recipe.crop_pct == AUTO else recipe.crop_pct
        yield from image_contradictions(recipe.input_size, recipe.mean, recipe.std, crop_pct)
        if recipe.lighting and recipe.input_size[0] == 1:
            shifts = "shifts red, green and blue, but input_size has one channel: set it to 0"
            yield f"lighting {recipe.lighting} {shifts}"
    on_hub = recipe.dataset.startswith("hfds/")
    if not recipe.dataset or (on_hub and not re.fullmatch(r"hfds/[\w.-]+(/[\w.-]+)?", recipe.dataset)):
        yield f"dataset must be fashion_mini or hfds/OWNER/NAME, got {brief(recipe.dataset)}"
    if recipe.select_split not in (None, AUTO) and recipe.val_fraction not in (0, AUTO):
        yield f"select_split {recipe.select_split} chooses the best epoch: set val_fraction to 0"
    if recipe.batch_size % recipe.grad_accum_steps:
        yield f"batch_size {recipe.batch_size} cannot be divided by grad_accum_steps {recipe.grad_accum_steps}"
    for name in ("scale", "ratio"):
        low_high = getattr(recipe, name)
        if len(low_high) != 2 or low_high[0] > low_high[1]:
            yield f"{name} must be a range of two values, low then high, got {brief(low_high)}"
    if recipe.aug_splits == 1:
        yield "aug_splits must be 0, or at least 2: one clean split and others to compare with it"
    if recipe.loss == "jsd" and not recipe.aug_splits:
        yield "loss jsd compares the splits of a batch: set aug_splits, to 3 as AugMix does"
    if recipe.class_weight is not None and recipe.loss in ("bce_softmax", "jsd"):
        yield f"class_weight needs the loss cross_entropy or bce, got {recipe.loss}"
    weights = recipe.class_weight if isinstance(recipe.class_weight, list) else []
    if weights and recipe.num_classes not in (AUTO, len(weights)):
        yield f"class_weight needs {recipe.num_classes} values, one per class, got {len(weights)}"
    if weights and not any(weights):
        yield "class_weight must have a weight above 0"
    if recipe.sched == "multistep" and sorted(set(recipe.decay_milestones)) != recipe.decay_milestones:
        yield f"decay_milestones must increase, got {brief(recipe.decay_milestones)}"
    if recipe.warmup_epochs and recipe.warmup_epochs >= recipe.epochs and not recipe.warmup_prefix:
        yield f"warmup_epochs {recipe.warmup_epochs} must be fewer than epochs {recipe.epochs}"


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
