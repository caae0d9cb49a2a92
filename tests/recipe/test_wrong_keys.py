"""Wrong keys: one line each, all of them together, before anything is done."""

import pytest

from tests.recipe.asking import problems
from timm_patchup.recipe import load_recipe
from timm_patchup.training.build import model_problems


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"epochs": "ten"}, "epochs must be a whole number of at least 1, got 'ten'"),
        ({"epochs": True}, "epochs must be a whole number of at least 1, got True"),
        ({"epochs": 1.5}, "epochs must be a whole number of at least 1, got 1.5"),
        ({"lr": 0}, "lr must be a number above 0, got 0"),
        ({"lr": float("nan")}, "lr must be a number above 0, got nan"),
        ({"val_fraction": 1}, "val_fraction must be a number in [0, 0.9], got 1"),
        (
            {"sched": "cosin"},
            "sched must be one of cosine, tanh, step, multistep, poly, none, got 'cosin'; did you mean cosine?",
        ),
        ({"amp": "yes"}, "amp must be true or false, got 'yes'"),
        ({"epoch": 3}, "unknown key 'epoch'; did you mean epochs"),
        ({"mix_gama": 0.5}, "unknown key 'mix_gama'; did you mean mix_gamma"),
        ({"mix": "hardpatchup"}, "mix: unknown method 'hardpatchup'; did you mean hard_patchup"),
        ({"mix_gamma": 0.5}, "mix_gamma is not a setting of none, which has no settings"),
        ({"mix": "hard_patchup", "mix_gamma": 2}, "mix_gamma must be a number in [0, 1], got 2"),
        ({"mix": "hard_patchup", "mix_gamma": "much"}, "mix_gamma must be a number in [0, 1], got 'much'"),
        (
            {"mix": "hard_patchup", "mix_block_size": [7, 0]},
            "mix_block_size must be a whole number of at least 1, got 0",
        ),
        (
            {"mix": "hard_patchup", "mix_mask": "samples"},
            "mix_mask must be one of batch, sample, got 'samples'; did you mean sample?",
        ),
        (
            {"mix": "hard_patchup", "mix_alpha": 2.0},
            "mix_alpha is not a setting of hard_patchup; it has mix_block_size, ",
        ),
        ({"mix": 3}, "mix must be a word, got 3"),
        ({"mix": 3, "mix_gamma": 0.5}, "mix must be a word, got 3"),
        ({"input_size": [3, 32]}, "input_size must be channels (1 or 3), height, width, got [3, 32]"),
        ({"mean": [0.5]}, "mean needs 3 values, one per channel, got [0.5]"),
        ({"scale": [1.0, 0.1]}, "scale must be a range of two values, low then high, got [1.0, 0.1]"),
        ({"batch_size": 100, "grad_accum_steps": 3}, "batch_size 100 cannot be divided by grad_accum_steps 3"),
        ({"sched": "multistep", "decay_milestones": [5, 3]}, "decay_milestones must increase, got [5, 3]"),
        ({"epochs": 5, "warmup_epochs": 5}, "warmup_epochs 5 must be fewer than epochs 5"),
        ({"model_kwargs": 3}, "model_kwargs must be a mapping of names to values, got 3"),
        ({"aa": "augmix-m3-w3", "aug_splits": 1}, "aug_splits must be 0, or at least 2: one clean split and others"),
        ({"loss": "jsd"}, "loss jsd compares the splits of a batch: set aug_splits, to 3 as AugMix does"),
        (
            {"input_size": [1, 32, 32], "mean": [0.5], "std": [0.5], "lighting": 0.1},
            "lighting 0.1 shifts red, green and blue, but input_size has one channel: set it to 0",
        ),
        ({"crop_padding_mode": "mirror"}, "crop_padding_mode must be one of constant, edge, reflect, symmetric, got"),
        ({"test_median": 0}, "test_median must be a whole number of at least 1, got 0"),
        (
            {"test_median": 5, "val_fraction": 0.1},
            "test_median has no effect next to held-out images: set val_fraction to 0",
        ),
        (
            {"test_median": 5, "val_fraction": 0, "best_on_test": True},
            "test_median has no effect next to best_on_test",
        ),
    ],
)
def test_a_wrong_value_gets_one_line(overrides: dict[str, object], expected: str) -> None:
    found = problems(**overrides)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_all_problems_are_shown_together() -> None:
    found = problems(epochs="x", lr=-1, lrr=3, scale=[2], mix="nope")
    assert len(found) == 5
    assert len(problems("no_such_recipe", epochs="x", lr=-1)) == 3


def test_settings_of_the_method_are_checked_with_everything_else() -> None:
    found = problems("fashion_mini_hard_patchup", mix_gamma=2, lr=0, epoch=3)
    assert len(found) == 3
    assert found[0].startswith("unknown key 'epoch'; did you mean epochs")
    assert found[1:] == ["lr must be a number above 0, got 0", "mix_gamma must be a number in [0, 1], got 2"]
    found = problems("fashion_mini_hard_patchup", mix_gamma=2, mix_alpha=1, mix_prob="x", mix_block_size=0, lr=0)
    assert len(found) == 5
    # What contradicts another key comes with it, too.
    found = problems("fashion_mini_hard_patchup", mix_gamma=2, batch_size=100, grad_accum_steps=3)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"model": "resnet51"}, "model: timm has no model 'resnet51'; did you mean"),
        ({"opt": "sgdd"}, "opt: timm has no optimizer 'sgdd'"),
        ({"model_kwargs": {"foo": 1}}, "model: timm cannot create 'preactresnet8'"),
        ({"aa": "nonsense"}, "aa: timm does not accept 'nonsense'"),
        ({"mix": "hard_patchup", "mix_sites": ["stage9"]}, "mix hard_patchup: unknown site 'stage9'"),
        (
            {"mix": "hard_patchup", "mix_block_size": [7, 5]},
            "mix hard_patchup: block_size has 2 values, but there are 4",
        ),
    ],
)
def test_what_cannot_be_built_is_reported_before_anything_is_done(overrides: dict[str, object], expected: str) -> None:
    found = model_problems(load_recipe("fashion_mini_none", overrides))
    assert len(found) == 1
    assert found[0].startswith(expected)
