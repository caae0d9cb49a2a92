"""Recipes as flags: of our commands, and handed over to timm's script."""

from pathlib import Path

import pytest

from tests.recipe.asking import flags
from timm_patchup.cli.for_timm import for_timm
from timm_patchup.cli.recipe_flags import given_keys
from timm_patchup.errors import UserError
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.schema import list_keys


@pytest.mark.parametrize("text", ["5e-1", "0.5", "5.0e-1", "+5E-1"])
def test_a_number_with_an_exponent_is_a_number_everywhere(text: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(f"include: [fashion_mini_soft_patchup]\nlr: {text}\nmix_gamma: {text}\n")
    from_file = load_recipe(tmp_path / "own.yaml")
    words = f"--lr {text} --mix-gamma {text} --scale {text} 1e0 --crop-padding none --opt adamw --opt-betas 9e-1 {text}"
    from_flags = load_recipe("fashion_mini_soft_patchup", given_keys(flags().parse_args(words.split())))
    from_code = load_recipe("fashion_mini_soft_patchup", {"lr": text, "mix_gamma": text})
    for recipe in (from_file, from_flags, from_code):
        assert (recipe.lr, recipe.mix_settings["gamma"]) == (0.5, 0.5)
        assert type(recipe.lr) is type(recipe.mix_settings["gamma"]) is float
    assert (from_flags.scale, from_flags.opt_betas) == ([0.5, 1.0], [0.9, 0.5])
    (tmp_path / "again.yaml").write_text(from_file.to_yaml())
    assert load_recipe(tmp_path / "again.yaml") == from_file


def test_every_key_is_a_flag() -> None:
    known = flags()._option_string_actions
    for name in list_keys():
        assert f"--{name.replace('_', '-')}" in known
        assert known[f"--{name.replace('_', '-')}"].help


def test_flags_override_and_those_not_given_leave_no_trace() -> None:
    words = "--epochs 2 --model resnet101 --lr 1e-3 --scale 0.5 1 --amp --no-channels-last --model-kwargs a=1 b=x"
    words += " --mix soft_patchup --mix-block-size 5 --mix-sites stem stage1 --aa none --limit none"
    given = given_keys(flags().parse_args(words.split()))
    assert given == {
        "epochs": 2,
        "model": "resnet101",
        "lr": "1e-3",
        "scale": [0.5, 1],
        "amp": True,
        "channels_last": False,
        "model_kwargs": {"a": 1, "b": "x"},
        "mix": "soft_patchup",
        "mix_block_size": 5,
        "mix_sites": ["stem", "stage1"],
        "aa": None,
        "limit": None,
    }
    assert load_recipe("imagenet_none", given).lr == 1e-3


def test_flags_take_several_values_whatever_method_is_shown() -> None:
    for shown in ("", "--mix dropblock", "--mix none", "--recipe imagenet_soft_patchup"):
        parser = flags(shown)
        given = given_keys(parser.parse_args(["--mix", "hard_patchup", "--mix-block-size", "7", "5", "3", "3"]))
        assert load_recipe("imagenet_none", given).mix_settings["block_size"] == [7, 5, 3, 3]
        given = given_keys(parser.parse_args(["--mix", "dropblock", "--mix-block-size", "5"]))
        assert load_recipe("imagenet_none", given).mix_settings["block_size"] == 5


def test_handing_a_recipe_to_timm() -> None:
    known = set(list_keys()) - {"lighting", "crop_padding", "val_fraction", "filter_bias_and_bn"} | {"bce_loss"}
    values, remarks = for_timm(load_recipe("imagenet_hard_patchup"), known=known, num_processes=8)
    assert values["batch_size"] == 32, "timm's batch is per process"
    assert values["mix_prob"] == 0.6
    assert "lighting" not in values
    assert any("lighting: 0.1 is left out" in line for line in remarks)
    values, _ = for_timm(load_recipe("cifar10_wrn28_10_none"), known=known, num_processes=1)
    assert values["decay_milestones"] == [201, 301], "timm drops the rate one epoch before"
    assert values["scale"] == [1.0, 1.0]
    known |= {"jsd_loss"}
    values, _ = for_timm(load_recipe("cifar100_wrn28_10_jsd_soft_patchup"), known=known, num_processes=1)
    assert (values["aug_splits"], values["jsd_loss"], values["bce_loss"]) == (3, True, False)
    with pytest.raises(UserError, match="100 is not divisible by 3 processes"):
        for_timm(load_recipe("cifar10_wrn28_10_none"), known=known, num_processes=3)
    with pytest.raises(UserError, match="bce_softmax"):
        for_timm(load_recipe("fashion_mini_none", {"loss": "bce_softmax"}), known=known, num_processes=1)
