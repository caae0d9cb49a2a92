"""The authors' protocol: every key it switches, for every benchmark, and what it leaves as it is."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.training import train_here
from timm_patchup.errors import UserError
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.compose import (
    list_benchmarks,
    list_protocols,
    list_recipe_methods,
    list_recipes,
    read_resolved,
)
from timm_patchup.recipe.layers import stored_recipe
from timm_patchup.study.definition import load_study
from timm_patchup.study.options import StudyOptions, run_recipe

ALWAYS = {"loss": "bce_softmax", "drop_last": False}
EVERYWHERE = ALWAYS | {"val_augment": True, "split_by_seed": True, "best_tie": "first"}
BY_DATA: dict[str, dict[str, Any]] = {
    "cifar10_": EVERYWHERE | {"val_per_class": 500},
    "cifar100_": EVERYWHERE | {"val_per_class": 50},
    "svhn_": EVERYWHERE | {"val_per_class": 733, "train_at_most": 7325},
    "tiny_imagenet_": ALWAYS | {"val_fraction": 0.0},  # nothing is held out there, so that no epoch can be chosen
    "fashion_mini": ALWAYS,  # as in its own recipe
    "imagenet": {"drop_last": False, "best_on_test": True, "model_kwargs": {"zero_init_last": False}},
}
AT_STAGE1 = ("hard_patchup", "soft_patchup", "manifold_mixup")


def changed(name: str) -> dict[str, Any]:
    own, theirs = load_recipe(name).to_dict(), load_recipe(name, {"protocol": "authors"}).to_dict()
    assert own.keys() == theirs.keys()
    return {key: value for key, value in theirs.items() if value != own[key]}


# OpenMixup's protocol, ImageNet's newer ones and fine-tuning are not the authors'.
OTHERS = ("cifar100_resnet18", "tiny_imagenet_resnet18", "imagenet_", "finetune")
PAPERS = [name for name in list_benchmarks() if not name.startswith(OTHERS)]


@pytest.mark.parametrize("benchmark", PAPERS)
def test_the_authors_protocol_switches_its_keys_and_no_others(benchmark: str) -> None:
    expected = next(keys for prefix, keys in BY_DATA.items() if benchmark.startswith(prefix))
    for method in list_recipe_methods():
        own = dict(expected)
        if method == "cutout":
            own["mix_mask"] = "batch"
            if benchmark == "cifar10_wrn28_10":
                own["mix_length"] = 8
        if "wrn28_10" in benchmark and method in (*AT_STAGE1, "feature_cutmix"):
            own["mix_sites"] = ["input", "stem", "stage1"] if method in AT_STAGE1 else ["stem", "stage1"]
            if "patchup" in method:
                own |= {"mix_block_size": 7, "mix_objective": "authors"}
        assert changed(f"{benchmark}_{method}") == own, method


def test_the_protocol_can_be_applied_to_every_recipe() -> None:
    recipes = [load_recipe(name, {"protocol": "authors"}) for name in list_recipes()]
    assert len(recipes) == len(list_benchmarks()) * len(list_recipe_methods())
    assert {recipe.drop_last for recipe in recipes} == {False}


def test_flags_override_the_protocol() -> None:
    recipe = load_recipe("svhn_wrn28_10_hard_patchup", {"protocol": "authors", "loss": "cross_entropy", "seed": 3})
    assert (recipe.loss, recipe.val_per_class, recipe.best_tie) == ("cross_entropy", 733, "first")
    other = load_recipe("svhn_wrn28_10_hard_patchup", {"protocol": "authors", "model": "resnet18"})
    assert (other.mix_settings["sites"], other.loss) == (None, "bce_softmax")


def test_a_file_may_ask_for_a_protocol(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("include: [cifar10_wrn28_10_cutout]\nprotocol: authors\n")
    assert load_recipe(path) == load_recipe("cifar10_wrn28_10_cutout", {"protocol": "authors"})


def test_a_study_under_the_protocol(tmp_path: Path) -> None:
    study = load_study("svhn")
    recipe = run_recipe(study.runs(1)[0], StudyOptions(tmp_path, overrides={"protocol": "authors"}))
    assert recipe.val_per_class == 733


def test_unknown_protocols_are_refused() -> None:
    assert list_protocols() == ["authors"]
    with pytest.raises(UserError, match=r"unknown protocol 'author'.*did you mean authors"):
        load_recipe("svhn_wrn28_10_none", {"protocol": "author"})


def test_the_flag_of_the_training_command(tmp_path: Path) -> None:
    shown = train_here("--recipe", "svhn_wrn28_10_cutout", "--protocol", "authors", "--show-recipe")
    assert "train_at_most: 7325" in shown.out
    assert "mix_mask: batch" in shown.out
    ended = train_here("--resume", tmp_path / "run", "--protocol", "authors")
    assert ended.code == 2
    assert "--protocol with --resume needs the --recipe it changes" in ended.err


def test_dropblock_of_earlier_runs_stays_at_a_random_site() -> None:
    stored = load_recipe("fashion_mini_dropblock").to_dict() | {"mix_sites": None}
    earlier = stored_recipe({key: value for key, value in stored.items() if key not in ("mix_at", "mix_mask")})
    assert (earlier.mix_settings["at"], earlier.mix_settings["mask"]) == ("random", "sample")
    assert earlier.mix_settings["sites"] == ["input", "stem", "stage1", "stage2"]
    assert stored_recipe(earlier.to_dict()) == earlier
    now = load_recipe("fashion_mini_dropblock")
    assert stored_recipe(now.to_dict()) == now


def test_puzzle_mix_of_earlier_runs_keeps_its_cell() -> None:
    stored = load_recipe("imagenet_puzzle_mix").to_dict()
    assert stored_recipe(stored).mix_settings["cell"] == 2
    earlier = {key: value for key, value in stored.items() if key != "mix_cell"}
    assert stored_recipe(earlier).mix_settings["cell"] == 4


def test_recipes_of_earlier_runs_have_the_earlier_behaviour(tmp_path: Path) -> None:
    """A stored recipe without the keys of the protocol resumes as it was."""
    stored = load_recipe("fashion_mini_cutout").to_dict()
    new = ("val_per_class", "val_augment", "split_by_seed", "train_at_most", "best_tie", "best_on_test", "mix_mask")
    new = (*new, "drop_last")
    earlier = stored_recipe({key: value for key, value in stored.items() if key not in new})
    assert earlier == load_recipe("fashion_mini_cutout")
    assert {key: earlier.to_dict()[key] for key in new} == {
        "val_per_class": None,
        "val_augment": False,
        "split_by_seed": False,
        "train_at_most": None,
        "best_tie": "last",
        "best_on_test": False,
        "mix_mask": "sample",
        "drop_last": True,
    }
    (tmp_path / "recipe.yaml").write_text(earlier.to_yaml())
    assert read_resolved(tmp_path / "recipe.yaml") == earlier
