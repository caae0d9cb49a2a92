"""Keys without effect: every one is refused, stored ones are left out, and those that an override disables return to
their defaults.
"""

from pathlib import Path
from typing import Any

import pytest

from timm_patchup.core.settings import settings_of
from timm_patchup.errors import NoEffect, UserError
from timm_patchup.recipe import Recipe, list_recipes, load_recipe
from timm_patchup.recipe.compose import read_resolved
from timm_patchup.recipe.layers import stored_recipe

IN_MEMORY = "on small images cropped from padding: crop_padding none takes timm's random crop"
DRAWN = "without val_fraction, val_per_class, test_fraction, train_per_class, train_at_most and limit"
HELD_OUT = "without val_fraction, val_per_class or select_split"
# What disables the key, a value other than its default, the reason, and what makes the key effective.
CASES: dict[str, tuple[dict[str, Any], Any, str, dict[str, Any]]] = {
    "val_fraction": ({"val_per_class": 3}, 0.2, "next to val_per_class", {"val_per_class": None}),
    "val_per_class": ({"select_split": "val", "val_fraction": 0}, 3, "next to select_split", {"select_split": None}),
    "val_augment": ({"val_fraction": 0}, True, HELD_OUT, {"val_per_class": 3}),
    "split_seed": ({"val_fraction": 0}, 3, DRAWN, {"limit": 99}),
    "split_by_seed": ({"val_fraction": 0}, True, DRAWN, {"train_at_most": 99}),
    "train_at_most": ({"train_per_class": 3}, 5, "next to train_per_class", {"train_per_class": None}),
    "crop_pct": ({"crop_padding": 4}, 0.9, IN_MEMORY, {"crop_padding": None}),
    "crop_mode": ({"crop_padding": 4}, "squash", IN_MEMORY, {"crop_padding": None}),
    "train_interpolation": ({"crop_padding": 4}, "random", IN_MEMORY, {"crop_padding": None}),
    "scale": ({"crop_padding": 4}, [0.5, 1.0], IN_MEMORY, {"crop_padding": None}),
    "ratio": ({"crop_padding": 0}, [1.0, 1.0], IN_MEMORY, {"crop_padding": None}),
    "color_jitter": ({"aa": "original"}, 0.4, "next to aa, as in timm: set color_jitter to 0", {"aa": "3a"}),
    "aug_splits": ({}, 3, "without aa or color_jitter: all splits would be the same", {"aa": "augmix-m3-w3"}),
    "aug_repeats": ({"crop_padding": 4}, 3, IN_MEMORY, {"crop_padding": None}),
    "bce_sum": ({}, True, "with the loss cross_entropy: it needs bce", {"loss": "bce"}),
    "bce_target_thresh": ({}, 0.2, "with the loss cross_entropy: it needs bce", {"loss": "bce"}),
    "remode": ({}, "const", "without reprob", {"reprob": 0.1}),
    "recount": ({}, 2, "without reprob", {"reprob": 0.1}),
    "mixup_off_epoch": ({"mix": "none"}, 3, "with the mix none", {"mix": "cutmix"}),
    "mixup_warmup_epochs": ({"mix": "none"}, 3, "with the mix none", {"mix": "cutmix"}),
    "mixup_warmup": ({"mix": "dropblock"}, ["drop_prob"], "without mixup_warmup_epochs", {"mixup_warmup_epochs": 2}),
    "momentum": ({"opt": "adamw"}, 0.8, "with the optimizer adamw, which has no momentum", {"opt": "sgd"}),
    "pretrained_path": ({}, "weights.safetensors", "without pretrained", {"pretrained": True}),
    "layer_decay": ({"sched": "none"}, 0.7, "with the schedule none", {"sched": "cosine"}),
    "filter_bias_and_bn": ({"weight_decay": 0}, False, "without weight_decay", {"weight_decay": 0.1}),
    "opt_eps": ({"opt": "sgd"}, 0.1, "with the optimizer sgd, which has no eps", {"opt": "adamw"}),
    "opt_betas": ({"opt": "sgd"}, [0.9, 0.99], "with the optimizer sgd, which has no betas", {"opt": "adamw"}),
    "clip_mode": ({}, "agc", "without clip_grad", {"clip_grad": 1.0}),
    "sched_on_updates": ({"sched": "none"}, True, "with the schedule none", {"sched": "tanh"}),
    "decay_milestones": ({}, [3, 4], "with the schedule cosine: it needs multistep", {"sched": "multistep"}),
    "decay_epochs": ({"sched": "multistep"}, 3, "with the schedule multistep: it needs step", {"sched": "step"}),
    "decay_rate": ({}, 0.2, "with the schedule cosine: it needs step or multistep or poly", {"sched": "poly"}),
    "min_lr": ({"sched": "step"}, 0.01, "with the schedule step", {"sched": "cosine"}),
    "warmup_epochs": ({"sched": "none"}, 1, "with the schedule none", {"sched": "multistep"}),
    "warmup_lr": ({}, 0.1, "without warmup_epochs", {"warmup_epochs": 2}),
    "warmup_prefix": ({}, True, "without warmup_epochs", {"warmup_epochs": 2}),
    "cooldown_epochs": ({"sched": "step"}, 3, "with the schedule step", {"sched": "cosine"}),
    "model_ema_decay": ({}, 0.9, "without model_ema", {"model_ema": True}),
    "model_ema_warmup": ({}, True, "without model_ema", {"model_ema": True}),
    "amp_dtype": ({}, "float16", "without amp", {"amp": True}),
    "eval_metric": ({"val_fraction": 0}, "loss", "without val_fraction", {"select_split": "val"}),
    "best_tie": ({"val_fraction": 0}, "first", HELD_OUT, {"best_on_test": True}),
    "crop_padding_mode": ({"crop_padding": 0}, "reflect", "without crop_padding", {"crop_padding": 4}),
    "test_median": ({}, 5, "next to held-out images: set val_fraction to 0", {"val_fraction": 0}),
    "best_on_test": ({}, True, "next to held-out images: set val_fraction to 0", {"val_fraction": 0}),
}


def test_every_declared_key_has_a_case() -> None:
    assert set(CASES) == {name for name, declared in settings_of(Recipe).items() if declared.needs is not None}


@pytest.mark.parametrize("name", CASES)
def test_a_key_without_effect_is_refused_with_the_reason(name: str) -> None:
    disabling, value, reason, enabling = CASES[name]
    with pytest.raises(NoEffect) as caught:
        Recipe.from_dict(disabling | {name: value})
    assert list(caught.value.reasons) == [name]
    assert caught.value.problems[0].startswith(f"{name} has no effect {reason}")
    assert getattr(Recipe.from_dict(disabling | enabling | {name: value}), name) == value
    default = settings_of(Recipe)[name].default
    assert getattr(Recipe.from_dict(disabling | {name: default}), name) == default


@pytest.mark.parametrize("name", CASES)
def test_runs_of_earlier_editions_keep_their_recipe_readable(name: str, tmp_path: Path) -> None:
    """A resolved recipe has all keys, and earlier releases accepted some that had no effect."""
    disabling, value, _, _ = CASES[name]
    stored = Recipe.from_dict(disabling).to_dict() | {name: value}
    assert stored_recipe(stored) == Recipe.from_dict(disabling)
    (tmp_path / "recipe.yaml").write_text(
        "\n".join(f"{key}: {'null' if one is None else one}" for key, one in stored.items())
    )
    assert read_resolved(tmp_path / "recipe.yaml") == Recipe.from_dict(disabling)


@pytest.mark.parametrize(
    ("disabling", "ways"),
    [
        ({"val_fraction": 0, "select_split": "val"}, {"select_split": None}),
        ({"val_per_class": 3}, {"val_fraction": 0, "val_per_class": None}),
        ({"val_fraction": "auto", "select_split": "auto"}, {"val_fraction": 0, "select_split": None}),
    ],
)
def test_the_way_out_of_held_out_images_is_one(disabling: dict[str, Any], ways: dict[str, Any]) -> None:
    named = " and ".join(f"{key} to {'none' if value is None else value}" for key, value in ways.items())
    with pytest.raises(NoEffect, match=f"test_median has no effect next to held-out images: set {named}$"):
        Recipe.from_dict(disabling | {"test_median": 3})
    assert Recipe.from_dict(disabling | ways | {"test_median": 3}).test_median == 3


def test_two_keys_that_disable_each_other_in_turn_are_both_left_out() -> None:
    stored = Recipe().to_dict() | {"sched": "none", "warmup_epochs": 2, "warmup_lr": 0.3}
    assert stored_recipe(stored) == Recipe(sched="none")


def test_all_recipes_can_be_stored_and_read() -> None:
    for name in list_recipes():
        recipe = load_recipe(name)
        assert stored_recipe(recipe.to_dict()) == Recipe.from_dict(recipe.to_dict()) == recipe


def test_an_override_disables_keys_of_the_recipe_and_not_of_the_caller(tmp_path: Path) -> None:
    benchmark = "cifar10_wrn28_10_none"
    assert load_recipe(benchmark).decay_milestones == [200, 300]
    assert load_recipe(benchmark, {"sched": "cosine"}).decay_milestones == [30, 60]
    with pytest.raises(NoEffect, match="decay_milestones"):
        load_recipe(benchmark, {"sched": "cosine", "decay_milestones": [1, 2]})
    own = tmp_path / "own.yaml"
    own.write_text(f"include: [{benchmark}]\nsched: cosine\n")
    assert load_recipe(own).decay_milestones == [30, 60]
    own.write_text(f"include: [{benchmark}]\nsched: cosine\ndecay_milestones: [1, 2]\n")
    for overrides in ({}, {"epochs": 3}, {"sched": "tanh"}):  # a mistake of the file stays one
        with pytest.raises(NoEffect, match="decay_milestones"):
            load_recipe(own, overrides)
    assert load_recipe(own, {"sched": "multistep"}).decay_milestones == [1, 2]


def test_other_problems_come_first() -> None:
    with pytest.raises(UserError) as caught:
        Recipe.from_dict({"decay_rate": 0.3, "lr": -1})
    assert caught.value.problems == ["lr must be a number above 0, got -1"]
