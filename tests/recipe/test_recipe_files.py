"""Recipes as files: a user's own, a resolved one that comes back, one of an earlier release, and what is none."""

from pathlib import Path

import pytest
import yaml

from tests.recipe.asking import flags, problems
from timm_patchup.cli.recipe_flags import given_keys
from timm_patchup.core.method import list_methods, make_method, method_settings
from timm_patchup.errors import UserError
from timm_patchup.methods.patchup import HardPatchUp
from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.recipe.compose import read_resolved
from timm_patchup.recipe.layers import stored_recipe


def test_a_resolved_recipe_comes_back_from_its_file(tmp_path: Path) -> None:
    recipe = load_recipe("cifar100_wrn28_10_soft_patchup", {"epochs": 3, "model_kwargs": {"final_norm": True}})
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    again = load_recipe(tmp_path / "recipe.yaml")
    assert again == recipe
    assert again.mix_settings["alpha"] == 2.0, "defaults are written out"


def test_another_method_comes_with_its_own_settings(tmp_path: Path) -> None:
    by_name = load_recipe("imagenet_hard_patchup", {"mix": "soft_patchup"})
    assert by_name == load_recipe("imagenet_soft_patchup"), "settings by benchmark, too"
    (tmp_path / "r.yaml").write_text(load_recipe("imagenet_hard_patchup").to_yaml())
    from_file = load_recipe(tmp_path / "r.yaml", {"mix": "soft_patchup", "mix_alpha": 1.0})
    assert from_file.mix_settings["gamma"] == 0.75, "a resolved file names no benchmark: the method's own default"
    assert from_file.mix_settings["alpha"] == 1.0
    assert load_recipe(tmp_path / "r.yaml", {"mix": "hard_patchup"}).mix_settings["prob"] == 0.6, (
        "the same method stays"
    )


def test_another_model_drops_the_arguments_of_the_first() -> None:
    assert load_recipe("tiny_imagenet_wrn28_10_none", {"model": "resnet101"}).model_kwargs == {}
    assert load_recipe("tiny_imagenet_wrn28_10_none", {"model": "wrn28_10_authors"}).model_kwargs == {"stem_stride": 2}
    kept = {"model": "wrn16_2", "model_kwargs": {"stem_stride": 1}}
    assert load_recipe("tiny_imagenet_wrn28_10_none", kept).model_kwargs == {"stem_stride": 1}


def test_a_users_file_builds_on_recipes_and_files(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("include: [imagenet_hard_patchup]\nepochs: 90\n")
    (tmp_path / "mine.yaml").write_text("include: [base.yaml]\nlr: 1e-2\n")
    recipe = load_recipe(tmp_path / "mine.yaml")
    assert (recipe.epochs, recipe.lr, recipe.mix_settings["prob"]) == (90, 0.01, 0.6)
    (tmp_path / "a.yaml").write_text("include: [b.yaml]\n")
    (tmp_path / "b.yaml").write_text("include: [a.yaml]\n")
    assert "includes itself" in problems(tmp_path / "a.yaml")[0]


FIRST_EDITION = """
dataset: fashion_mini
mix: hard_patchup
mix_alpha: 2.0
mix_block_size: 7
mix_gamma: 0.4
mix_input_mask: rectangle
mix_mask: batch
mix_objective: paper
mix_prob: 0.7
mix_sites: null
"""


def test_a_recipe_of_the_first_edition_is_read(tmp_path: Path) -> None:
    """It stored an alpha for hard PatchUp, which never had an effect there."""
    path = tmp_path / "recipe.yaml"
    path.write_text(FIRST_EDITION)
    stored = yaml.safe_load(FIRST_EDITION)
    for recipe in (load_recipe(path), read_resolved(path), stored_recipe(stored)):
        assert recipe.method == HardPatchUp(gamma=0.4)
        assert "mix_alpha" not in recipe.to_dict()
    # It is a setting of soft PatchUp; given for hard PatchUp, it is refused.
    path.write_text(FIRST_EDITION.replace("hard_patchup", "soft_patchup").replace("2.0", "1.5"))
    assert load_recipe(path).mix_settings["alpha"] == 1.5
    path.write_text(FIRST_EDITION)
    for overrides in ({"mix_alpha": 2.0}, given_keys(flags().parse_args(["--mix-alpha", "2.0"]))):
        assert problems(path, **overrides)[0].startswith("mix_alpha is not a setting of hard_patchup; it has mix_")
    with pytest.raises(UserError, match="mix_alpha is not a setting of hard_patchup"):
        Recipe.from_dict(stored)


def test_defaults_of_the_method_are_written_out() -> None:
    for name in list_methods():
        recipe = Recipe(mix=name)
        assert recipe.mix_settings == make_method(name).settings()
        assert list(recipe.mix_settings) == sorted(method_settings(name))
        assert recipe.method == make_method(name)
        assert Recipe.from_dict(recipe.to_dict()) == recipe
        assert Recipe.from_dict(yaml.safe_load(recipe.to_yaml())) == recipe


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    for name, text, expected in (
        ("a.yaml", "epochs: [1", "line 1: not YAML"),
        ("a.yaml", "lr: 0.1\nepochs: 3\nlr: 0.2\n", "line 3: not YAML: key 'lr' is given twice"),
        ("a.yaml", "mix_settings: {cutmix: {prob: 1, prob: 0.5}}", "key 'prob' is given twice"),
        ("b.yaml", "- 1\n", "must be a mapping of names to values, got a list"),
        ("c.yaml", "include: cifar10\n", "include must be a list"),
        ("d.yaml", "", "must be a mapping of names to values, got none"),
    ):
        (tmp_path / name).write_text(text)
        assert expected in problems(tmp_path / name)[0]
    (tmp_path / "e.yaml").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in problems(tmp_path / "e.yaml")[0]
    assert "no such file" in problems(tmp_path / "f.yaml")[0]


def test_yaml_is_never_executed(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("epochs: !!python/object/apply:os.system ['touch pwned']\n")
    assert "not YAML" in problems(tmp_path / "x.yaml")[0]


def test_differences_ignore_what_changes_nothing() -> None:
    recipe = load_recipe("fashion_mini_none")
    assert recipe.differences(load_recipe("fashion_mini_none", {"workers": 4, "checkpoint_steps": 7})) == {}
    other = load_recipe("fashion_mini_none", {"lr": 0.2, "seed": 1})
    assert recipe.differences(other) == {"lr": (0.1, 0.2), "seed": (0, 1)}
    changed = load_recipe("fashion_mini_hard_patchup", {"mix_gamma": 0.4})
    assert changed.differences(load_recipe("fashion_mini_hard_patchup")) == {"mix_gamma": (0.4, 0.5)}
