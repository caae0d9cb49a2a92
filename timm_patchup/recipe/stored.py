"""Recipes that a run stored, of this release or an earlier one, so that its run can be resumed and compared."""

from collections.abc import Mapping
from typing import Any

from ..core.method import PAPER_SITES
from .override import without_idle
from .schema import Recipe

# Settings that earlier releases wrote although the method had no use for them.
_RETIRED_SETTINGS = {"hard_patchup": ("mix_alpha",)}


def stored_recipe(values: Mapping[str, Any]) -> Recipe:
    """Make a recipe from the keys that a run stored.

    What had no effect is left out: earlier releases refused fewer of these keys.
    """
    return Recipe.from_dict(without_idle(_as_it_was(without_retired(values))))


def _as_it_was(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored keys with those whose default is not what a release without them did."""
    if values.get("mix") != "dropblock" or "mix_at" in values:
        return dict(values)
    sites = values.get("mix_sites") or list(PAPER_SITES)
    return {**values, "mix_at": "random", "mix_mask": "sample", "mix_sites": sites}


def without_retired(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored keys without those of earlier releases that never had an effect."""
    retired = _RETIRED_SETTINGS.get(str(values.get("mix")), ())
    return {name: value for name, value in values.items() if name not in retired}
