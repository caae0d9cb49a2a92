"""When a key of a recipe has no effect, because of the value of another one.

The conditions that ``setting(..., idle=...)`` takes: each gets the recipe and returns why the key has no effect, as the
end of the sentence "KEY has no effect ...", or None if it has one.
"""

from collections.abc import Callable
from typing import Any

from timm.optim import get_optimizer_info

Idle = Callable[[Any], str | None]
DECAYING = ("cosine", "tanh", "poly")
SCHEDULED = (*DECAYING, "step", "multistep")


def without(key: str) -> Idle:
    """Idle while another key is off: false, none or 0."""
    return lambda recipe: None if getattr(recipe, key) else f"without {key}"


def schedule_is(*names: str) -> Idle:
    """Idle with all schedules but these."""
    needed = f"it needs {' or '.join(names)}"
    return lambda recipe: None if recipe.sched in names else f"with the schedule {recipe.sched}: {needed}"


def optimizer_has(what: str) -> Idle:
    """Idle with optimizers that do not have this argument: ``"betas"``, ``"eps"`` or ``"momentum"``."""

    def idle(recipe: Any) -> str | None:
        try:
            known = get_optimizer_info(recipe.opt)
        except (KeyError, ValueError):  # an unknown optimizer is refused where it is made
            return None
        return None if getattr(known, f"has_{what}") else f"with the optimizer {recipe.opt}, which has no {what}"

    return idle


def loss_is(name: str) -> Idle:
    """Idle with all losses but this one."""
    return lambda recipe: None if recipe.loss == name else f"with the loss {recipe.loss}: it needs {name}"


def in_memory(recipe: Any) -> str | None:
    if recipe.crop_padding is None:
        return None
    return "on small images cropped from padding: crop_padding none takes timm's random crop"


def next_to_aa(recipe: Any) -> str | None:
    return None if recipe.aa is None or "3a" in recipe.aa else "next to aa, as in timm: set color_jitter to 0"


def nothing_chosen(recipe: Any) -> str | None:
    chosen = recipe.val_fraction or recipe.select_split is not None
    return None if chosen else "without val_fraction or select_split: no epoch is chosen"


def nothing_drawn(recipe: Any) -> str | None:
    if recipe.val_fraction or recipe.test_fraction or recipe.train_per_class or recipe.limit:
        return None
    return "without val_fraction, test_fraction, train_per_class and limit: all samples are used"
