"""Conditions under which a key of a recipe has no effect because of another key.

The conditions that ``setting(..., idle=...)`` takes: each gets the recipe and returns why the key has no effect, as the
end of the sentence "KEY has no effect ...", or None if it has one.
"""

from collections.abc import Callable
from typing import Any

from timm.optim import get_optimizer_info

from ..core.settings import AUTO

Idle = Callable[[Any], str | None]
DECAYING = ("cosine", "tanh", "poly")
SCHEDULED = (*DECAYING, "step", "multistep")
# The keys that hold out images, and the values that do not.
_HOLDING_OUT = {"val_fraction": "0", "val_per_class": "none", "select_split": "none"}


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


def no_mix(recipe: Any) -> str | None:
    return "with the mix none" if recipe.mix == "none" else None


def loss_is(name: str) -> Idle:
    """Idle with all losses but this one."""
    return lambda recipe: None if recipe.loss == name else f"with the loss {recipe.loss}: it needs {name}"


def in_memory(recipe: Any) -> str | None:
    if recipe.crop_padding is None:
        return None
    return "on small images cropped from padding: crop_padding none takes timm's random crop"


def next_to_aa(recipe: Any) -> str | None:
    return None if recipe.aa is None or "3a" in recipe.aa else "next to aa, as in timm: set color_jitter to 0"


def nothing_held_out(recipe: Any) -> str | None:
    return None if _holding_out(recipe) else "without val_fraction, val_per_class or select_split"


def nothing_augments(recipe: Any) -> str | None:
    return None if recipe.aa or recipe.color_jitter else "without aa or color_jitter: all splits would be the same"


def nothing_chosen(recipe: Any) -> str | None:
    why = None if recipe.best_on_test else nothing_held_out(recipe)
    return why and f"{why}: no epoch is chosen"


def held_out(recipe: Any) -> str | None:
    ways = [f"{key} to {_HOLDING_OUT[key]}" for key in _holding_out(recipe)]
    return f"next to held-out images: set {' and '.join(ways)}" if ways else None


def _holding_out(recipe: Any) -> list[str]:
    return [key for key in _HOLDING_OUT if getattr(recipe, key) not in (None, 0)]


def epoch_chosen(recipe: Any) -> str | None:
    return "next to best_on_test" if recipe.best_on_test else held_out(recipe)


def nothing_drawn(recipe: Any) -> str | None:
    drawn = ("val_fraction", "val_per_class", "test_fraction", "train_per_class", "train_at_most", "limit")
    if any(getattr(recipe, key) for key in drawn):
        return None
    return f"without {', '.join(drawn[:-1])} and limit: all samples are used"


def held_out_by_class(recipe: Any) -> str | None:
    return "next to val_per_class" if recipe.val_fraction and recipe.val_per_class else None


def next_to(key: str) -> Idle:
    """Idle while another key is set; what is still ``auto`` is found out next to it."""
    return lambda recipe: f"next to {key}" if getattr(recipe, key) not in (None, 0, AUTO) else None
