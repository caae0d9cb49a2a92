"""A recipe as arguments of timm's own train.py, for ``timm-patchup path/to/train.py --recipe NAME``.

What the script cannot do is reported, never dropped silently.
"""

from collections.abc import Collection
from typing import Any

from ..core.settings import settings_of
from ..data.embedded import fashion_mini_dir
from ..errors import UserError
from ..recipe.schema import Recipe
from ..training.build import batch_problems

# Keys of our own loop that timm's script does not have; values other than the default are reported.
_OURS = (
    "dataset_config",
    "val_fraction",
    "val_per_class",
    "val_augment",
    "split_by_seed",
    "train_per_class",
    "train_at_most",
    "limit",
    "crop_padding",
    "crop_padding_mode",
    "crop_mode",
    "lighting",
    "drop_last",
    "filter_bias_and_bn",
    "mixup_warmup_epochs",
    "best_tie",
    "best_on_test",
    "test_median",
    "select_split",
    "test_fraction",
    "pretrained_path",
    "head_init",
    "freeze",
    "class_weight",
)


def for_timm(recipe: Recipe, *, known: Collection[str], num_processes: int) -> tuple[dict[str, Any], list[str]]:
    """Return defaults for timm's parser, and a line per key that its script does not have.

    Args:
        recipe: the recipe.
        known: the keys of timm's parser.
        num_processes: timm's batch size is per process.

    Raises:
        UserError: keys that follow from the user's images, a batch that cannot be divided, or a loss that timm's
            script does not have.
    """
    if recipe.unresolved:
        found = "train it once with scripts/train.py, then give the recipe.yaml of that run"
        raise UserError(f"the recipe leaves {', '.join(recipe.unresolved)} to your images: {found}")
    problems = batch_problems(recipe, num_processes)
    if recipe.loss == "bce_softmax":
        problems.append("timm's script has no loss bce_softmax: choose cross_entropy or bce in the recipe")
    if problems:
        raise UserError(problems)
    values = recipe.to_dict()
    values["batch_size"] = recipe.batch_size // (num_processes * recipe.grad_accum_steps)
    values["bce_loss"], values["jsd_loss"] = recipe.loss == "bce", recipe.loss == "jsd"
    if not recipe.sched_on_updates:
        values["decay_milestones"] = [milestone + 1 for milestone in recipe.decay_milestones]  # timm drops one early
    if recipe.dataset == "fashion_mini":
        values["dataset"] = f"hfds/{fashion_mini_dir()}"
    if recipe.crop_padding is not None:
        values["scale"] = values["ratio"] = [1.0, 1.0]  # whole images instead of timm's crops
    declared = settings_of(Recipe)
    differing = [name for name in _OURS if name not in known and values[name] != declared[name].default]
    remarks = [f"timm's script does not know {name}: {values[name]} is left out" for name in differing]
    return {name: value for name, value in values.items() if name in known}, remarks
