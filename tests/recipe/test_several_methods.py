"""Several methods in a recipe: as keys, as flags, over other recipes, resolved, stored and read again."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from timm_patchup import OneOf
from timm_patchup.cli.recipe_flags import add_recipe_flags, given_keys
from timm_patchup.cli.study_commands import flags
from timm_patchup.errors import UserError
from timm_patchup.methods.cutmix import CutMix
from timm_patchup.methods.patchup import HardPatchUp
from timm_patchup.recipe import list_recipes, load_recipe
from timm_patchup.recipe.compose import read_resolved
from timm_patchup.recipe.layers import stored_recipe

BOTH: dict[str, Any] = {"mix": ["hard_patchup", "cutmix"]}
SET: dict[str, Any] = {"mix_weights": [2, 1], "mix_prob": "5e-1", "mix_settings": {"cutmix": {"alpha": "2e-1"}}}
# Sites and blocks belong to the benchmark's network.
HARD = HardPatchUp(prob=0.5, sites=("input", "stem", "stage1", "stage2"), block_size=(7, 5, 5, 3))
EXPECTED = OneOf([HARD, CutMix(prob=0.5, alpha=0.2)], weights=(2.0, 1.0))


def parsed(*words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_recipe_flags(parser, words)
    return given_keys(parser.parse_args(words))


def test_keys_and_flags_make_the_same_recipe(tmp_path: Path) -> None:
    by_keys = load_recipe("fashion_mini_none", BOTH | SET)
    assert by_keys.method == EXPECTED
    (tmp_path / "own.yaml").write_text(
        "include: [fashion_mini_none]\nmix: [hard_patchup, cutmix]\nmix_weights: [2, 1]\nmix_prob: 5e-1\n"
        "mix_settings:\n  cutmix: {alpha: 2e-1}\n"
    )
    assert load_recipe(tmp_path / "own.yaml") == by_keys
    words = "--mix hard_patchup cutmix --mix-weights 2 1 --mix-prob 5e-1 --mix-settings cutmix.alpha=2e-1"
    assert load_recipe("fashion_mini_none", parsed(*words.split())) == by_keys
    assert load_recipe("fashion_mini_none", parsed(*flags(BOTH | SET))) == by_keys, "as a study writes its commands"
    values = {"hard_patchup": {"sites": ["stem", "stage1"], "block_size": [5, 3], "objective": "l2"}}
    with_lists = BOTH | {"mix_settings": values}
    assert load_recipe("fashion_mini_none", parsed(*flags(with_lists))) == load_recipe("fashion_mini_none", with_lists)


def test_it_comes_back_from_its_file_with_everything_written_out(tmp_path: Path) -> None:
    recipe = load_recipe("fashion_mini_none", BOTH | SET)
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    stored = yaml.safe_load(recipe.to_yaml())
    assert stored["mix_weights"] == [2.0, 1.0]
    assert stored["mix_settings"] == {name: made.settings() for name, made in zip(stored["mix"], EXPECTED.methods)}
    for again in (load_recipe(tmp_path / "recipe.yaml"), read_resolved(tmp_path / "recipe.yaml")):
        assert again == recipe
    assert stored_recipe(stored) == recipe
    assert load_recipe("fashion_mini_none", BOTH).mix_weights == [1.0, 1.0], "the default, too"
    assert recipe.mix_name == "hard_patchup+cutmix"


def test_one_method_resolves_as_ever() -> None:
    for name in list_recipes():
        assert not {"mix_weights", "mix_settings"} & set(load_recipe(name).to_dict())
    alone = load_recipe("fashion_mini_none", {"mix": ["cutmix"], "mix_settings": {"cutmix": {"alpha": 0.5}}})
    assert alone == load_recipe("fashion_mini_none", {"mix": "cutmix", "mix_alpha": 0.5})


def test_every_method_brings_its_settings_for_the_benchmark() -> None:
    """Cutmix has prob 0.4 on CIFAR, hard PatchUp 0.6 on ImageNet."""
    cifar, imagenet = (load_recipe(f"{name}_none", BOTH).mix_settings for name in ("cifar10_wrn28_10", "imagenet"))
    assert (cifar["hard_patchup"]["prob"], cifar["cutmix"]["prob"]) == (0.7, 0.4)
    assert (imagenet["hard_patchup"]["prob"], imagenet["cutmix"]["prob"]) == (0.6, 1.0)


def test_overrides_win_over_what_they_override(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(load_recipe("fashion_mini_none", BOTH | SET).to_yaml())

    def probs(**overrides: Any) -> list[float]:
        settings = load_recipe(path, overrides).mix_settings
        return [settings["hard_patchup"]["prob"], settings["cutmix"]["prob"]]

    assert probs() == [0.5, 0.5]
    assert probs(mix_prob=0.3) == [0.3, 0.3], "for all, over each method's"
    assert probs(mix_settings={"cutmix": {"prob": 0.1}}) == [0.5, 0.1]
    assert probs(mix_prob=0.3, mix_settings={"cutmix": {"prob": 0.1}}) == [0.3, 0.1]
    assert load_recipe(path, {"mix_prob": 0.3}).mix_settings["cutmix"]["alpha"] == 0.2, "the rest stays"
    assert load_recipe(path, {"mix": ["hard_patchup", "cutmix"]}).method == EXPECTED, "the same methods stay"
    other = load_recipe(path, {"mix": ["cutmix", "mixup"]})
    assert (other.mix_weights, other.mix_settings["cutmix"]) == ([1.0, 1.0], {"alpha": 1.0, "prob": 0.4})
    assert load_recipe(path, {"mix": "cutmix"}) == load_recipe("fashion_mini_cutmix"), "back to one"
    (tmp_path / "own.yaml").write_text("include: [imagenet_hard_patchup]\nmix: [hard_patchup, cutmix]\n")
    assert load_recipe(tmp_path / "own.yaml") == load_recipe("imagenet_none", BOTH), "not hard PatchUp's 0.6 for both"
    (tmp_path / "more.yaml").write_text("include: [own.yaml]\nmix_prob: 0.2\n")
    assert {own["prob"] for own in load_recipe(tmp_path / "more.yaml").mix_settings.values()} == {0.2}


def test_differences_are_found() -> None:
    recipe = load_recipe("fashion_mini_none", BOTH | SET)
    assert recipe.differences(load_recipe("fashion_mini_none", BOTH | SET)) == {}
    weights = load_recipe("fashion_mini_none", BOTH | SET | {"mix_weights": [1, 1]})
    assert recipe.differences(weights) == {"mix_weights": ([2.0, 1.0], [1.0, 1.0])}
    settings = load_recipe("fashion_mini_none", BOTH | SET | {"mix_settings": {"cutmix": {"alpha": 0.5, "prob": 0.4}}})
    found = recipe.differences(settings)
    assert found.pop("mix_settings cutmix.alpha") == (0.2, 0.5)
    assert all(name.startswith("mix_settings ") and one != other for name, (one, other) in found.items())
    assert list(recipe.differences(load_recipe("fashion_mini_none"))) == ["mix", "mix_weights"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"mix": []}, "mix is empty: give at least one value"),
        ({"mix": ["cutmix", 3]}, "mix must be a list of names, got ['cutmix', 3]"),
        ({"mix": ["cutmix", "cutmix"]}, "mix names a method twice: cutmix, cutmix"),
        ({"mix": ["cutmix", "augmix"]}, "unknown method 'augmix': choose from cutmix, cutout, "),
        (BOTH | {"mix_weights": [1]}, "mix_weights has 1 values for 2 methods"),
        (BOTH | {"mix_weights": [1, 0]}, "mix_weights must be a number above 0, got 0"),
        (
            BOTH | {"mix_drop_prob": 0.1},
            "mix_drop_prob is not a setting of hard_patchup or cutmix; they have mix_alpha",
        ),
        (BOTH | {"mix_gamma": 2}, "hard_patchup.gamma must be a number in [0, 1], got 2"),
        (BOTH | {"mix_settings": 3}, "mix_settings must be a mapping of methods to their settings, got 3"),
        (BOTH | {"mix_settings": {"cutmix": 3}}, "settings of cutmix must be a mapping of names to values, got 3"),
        (
            BOTH | {"mix_settings": {"mixup": {"alpha": 1}}},
            "settings of 'mixup', which is not among the methods hard_pa",
        ),
        (
            BOTH | {"mix_settings": {"cutmix": {"gamma": 1}}},
            "cutmix.gamma is not a setting of cutmix; it has cutmix.alp",
        ),
        (
            {"mix": "cutmix", "mix_weights": [1]},
            "mix_weights has no effect with one method: leave it out, or name sever",
        ),
    ],
)
def test_a_wrong_value_gets_one_line(overrides: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("fashion_mini_none", overrides)
    (line,) = caught.value.problems
    assert line.startswith(expected)


@pytest.mark.parametrize("word", ["cutmix.alpha", "alpha=1", ".alpha=1", "cutmix.=1"])
def test_a_wrong_word_ends_the_parser(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--mix", "cutmix", "mixup", "--mix-settings", word)
    assert (
        f"--mix-settings needs METHOD.SETTING=VALUE, such as cutmix.prob=0.5, got {word!r}" in capsys.readouterr().err
    )


def test_help_shows_the_values_of_each_method() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_recipe_flags(parser, ["--recipe", "cifar10_wrn28_10_none", "--mix", "hard_patchup", "cutmix"])
    actions = parser._option_string_actions
    assert (actions["--mix"].help or "").endswith("(default: hard_patchup cutmix)")
    shown = "hard_patchup: probability that a batch is altered (default: 0.7); cutmix: probability that a batch is "
    assert (actions["--mix-prob"].help or "") == f"{shown}altered (default: 0.4)"
