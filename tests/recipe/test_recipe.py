"""Recipes: every name resolves, the paper's numbers are in them, and all problems are reported together."""

import argparse
from pathlib import Path

import pytest
import yaml

from tests.support.recipes import load_complete
from timm_patchup.cli.for_timm import for_timm
from timm_patchup.cli.recipe_flags import add_recipe_flags, given_keys
from timm_patchup.core.method import list_methods, make_method, method_settings
from timm_patchup.errors import UserError
from timm_patchup.methods.patchup import HardPatchUp
from timm_patchup.recipe import Recipe, list_recipes, load_recipe
from timm_patchup.recipe.compose import list_benchmarks, list_recipe_methods, read_resolved, recipes_dir
from timm_patchup.recipe.schema import list_keys
from timm_patchup.recipe.stored import stored_recipe
from timm_patchup.training.build import model_problems


def flags(words: str = "") -> argparse.ArgumentParser:
    """Return a parser of all keys."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_recipe_flags(parser, words.split())
    return parser


def problems(source: str | Path = "fashion_mini_none", **overrides: object) -> list[str]:
    with pytest.raises(UserError) as caught:
        load_recipe(source, overrides)
    return caught.value.problems


def test_every_name_resolves_and_validates() -> None:
    assert len(list_benchmarks()) >= 15
    assert set(list_recipe_methods()) >= set(list_methods()), "every method has a recipe"
    names = list_recipes()
    assert len(set(names)) == len(list_benchmarks()) * len(list_recipe_methods()) >= 15 * 12
    for name in names:
        recipe = load_recipe(name)
        assert name.endswith(recipe.mix) or recipe.mix == "none"


@pytest.mark.parametrize("benchmark", list_benchmarks())
def test_model_and_method_of_every_recipe_fit(benchmark: str) -> None:
    for method in list_recipe_methods():
        assert model_problems(load_complete(f"{benchmark}_{method}")) == []


def test_every_file_is_used_and_names_no_unknown_part() -> None:
    parts = {path.stem for path in (recipes_dir() / "parts").glob("*.yaml")}
    included = set()
    for path in (recipes_dir() / "benchmarks").glob("*.yaml"):
        text = path.read_text()
        included |= set(yaml.safe_load(text)["include"])
        assert text.startswith("# "), "a recipe opens with its purpose"
        assert text.count(f"--recipe {path.stem}_") == 2, "and with its launch line and an override"
    assert included == parts
    for path in (recipes_dir() / "methods").glob("*.yaml"):
        assert set(yaml.safe_load(path.read_text()).get("when", {})) <= parts | set(list_benchmarks())


# The paper: table of learning rates, "Experiments" and the appendix on set-up; ImageNet in CutMix's setting.
SCHEDULES = {
    "preactresnet18": (2000, [500, 1000, 1500]),
    "preactresnet34": (2000, [500, 1000, 1500]),
    "wrn28_10": (400, [200, 300]),
}


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "svhn"])
@pytest.mark.parametrize("model", SCHEDULES)
def test_small_benchmarks_are_the_papers(data: str, model: str) -> None:
    recipe = load_recipe(f"{data}_{model}_hard_patchup")
    epochs, milestones = SCHEDULES[model]
    net = "wrn28_10_authors" if model == "wrn28_10" else model
    assert (recipe.model, recipe.epochs, recipe.decay_milestones) == (net, epochs, milestones)
    assert (recipe.sched, recipe.decay_rate, recipe.warmup_epochs) == ("multistep", 0.1, 0)
    assert (recipe.opt, recipe.lr, recipe.momentum, recipe.weight_decay) == ("sgd", 0.1, 0.9, 1e-4)
    assert (recipe.batch_size, recipe.val_fraction, recipe.smoothing) == (100, 0.1, 0.0)
    assert recipe.num_classes == (100 if data == "cifar100" else 10)
    assert (recipe.crop_padding, recipe.hflip) == (2, 0.0 if data == "svhn" else 0.5)
    assert recipe.filter_bias_and_bn is False
    assert recipe.model_kwargs == ({} if model == "wrn28_10" else {"final_norm": False, "init": "torch"})


def test_settings_of_the_methods_by_benchmark() -> None:
    def of(name: str) -> tuple[float, float, int]:
        settings = load_recipe(name).mix_settings
        return settings["prob"], settings["gamma"], settings["block_size"]

    assert of("cifar10_preactresnet18_hard_patchup") == (0.7, 0.5, 7)
    assert of("cifar10_wrn28_10_hard_patchup") == (0.7, 0.5, [7, 7, 7, 5])
    assert of("tiny_imagenet_resnet101_soft_patchup") == (1.0, 0.75, [7, 7, 5])
    assert of("imagenet_hard_patchup") == (0.6, 0.5, 7)
    assert of("imagenet_soft_patchup") == (1.0, 0.6, 7)


def test_imagenet_is_cutmixs_setting() -> None:
    recipe = load_recipe("imagenet_hard_patchup")
    assert (recipe.model, recipe.epochs, recipe.batch_size, recipe.lr) == ("resnet50", 300, 256, 0.1)
    assert (recipe.sched, recipe.decay_epochs, recipe.decay_rate, recipe.weight_decay) == ("step", 75, 0.1, 1e-4)
    assert (recipe.color_jitter, recipe.lighting, recipe.input_size[1], recipe.crop_pct) == (0.4, 0.1, 224, 224 / 256)
    assert recipe.crop_padding is None


def test_tiny_imagenet_and_scarce_data() -> None:
    assert load_recipe("tiny_imagenet_wrn28_10_none").model_kwargs == {"stem_stride": 2}
    assert load_recipe("tiny_imagenet_resnet152_none").model == "resnet152"
    assert load_recipe("tiny_imagenet_resnet152_none").crop_padding == 4
    scarce = load_recipe("cifar10_scarce_none")
    assert (scarce.model, scarce.train_per_class, scarce.epochs, scarce.sched) == ("preactresnet8", 100, 240, "cosine")
    assert (scarce.batch_size, scarce.lr, scarce.weight_decay) == (100, 0.1, 1e-4)


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
        ({"mix_gamma": 0.5}, "mix_gamma is not a setting of none; it has none"),
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


# Numbers, old files


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


def test_unknown_names_show_the_nearest() -> None:
    assert "did you mean imagenet_hard_patchup" in problems("imagenet_hard_patchp")[0]
    assert "imagenet_hard_patchup" in problems("imagenet")[0], "a benchmark alone lists its recipes"


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    for name, text, expected in (
        ("a.yaml", "epochs: [1", "line 1: not YAML"),
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


def test_differences_ignore_what_changes_nothing() -> None:
    recipe = load_recipe("fashion_mini_none")
    assert recipe.differences(load_recipe("fashion_mini_none", {"workers": 4, "checkpoint_steps": 7})) == {}
    other = load_recipe("fashion_mini_none", {"lr": 0.2, "seed": 1})
    assert recipe.differences(other) == {"lr": (0.1, 0.2), "seed": (0, 1)}
    changed = load_recipe("fashion_mini_hard_patchup", {"mix_gamma": 0.4})
    assert changed.differences(load_recipe("fashion_mini_hard_patchup")) == {"mix_gamma": (0.4, 0.5)}


def test_handing_a_recipe_to_timm() -> None:
    known = set(list_keys()) - {"lighting", "crop_padding", "val_fraction", "filter_bias_and_bn"} | {"bce_loss"}
    values, remarks = for_timm(load_recipe("imagenet_hard_patchup"), known=known, num_processes=8)
    assert values["batch_size"] == 32, "timm's batch is that of one process"
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


def test_the_default_recipe_is_complete() -> None:
    assert Recipe.from_dict({}) == Recipe()
    assert load_recipe().mix == "hard_patchup"
