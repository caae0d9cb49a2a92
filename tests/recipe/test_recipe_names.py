"""Recipes by name: every one resolves, fits its model and has the paper's numbers."""

import pytest
import yaml

from tests.recipe.asking import problems
from tests.support.recipes import load_complete
from timm_patchup.core.method import list_methods
from timm_patchup.recipe import Recipe, list_recipes, load_recipe
from timm_patchup.recipe.compose import list_benchmarks, list_recipe_methods, recipes_dir
from timm_patchup.training.build import model_problems


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


OPENMIXUPS = {  # per benchmark: Beta's alpha of each method that OpenMixup has
    "cifar100_resnet18": {"mixup": 1.0, "cutmix": 0.2, "manifold_mixup": 2.0, "puzzle_mix": 1.0},
    "tiny_imagenet_resnet18": {"mixup": 1.0, "cutmix": 1.0, "manifold_mixup": 0.2, "puzzle_mix": 1.0},
}


@pytest.mark.parametrize("benchmark", OPENMIXUPS)
def test_benchmarks_with_resnet18_are_openmixups(benchmark: str) -> None:
    """From its configurations r18_mixups_CE_none.py, the datasets these name, and the alphas of its tables."""
    small = benchmark.startswith("cifar100")
    for method in list_recipe_methods():
        recipe = load_recipe(f"{benchmark}_{method}")
        assert (recipe.model, recipe.epochs, recipe.batch_size) == ("resnet18_cifar", 400, 100)
        assert (recipe.opt, recipe.momentum, recipe.weight_decay, recipe.filter_bias_and_bn) == (
            "momentum",
            0.9,
            1e-4,
            False,
        ), "without Nesterov"
        assert (recipe.sched, recipe.min_lr, recipe.warmup_epochs) == ("cosine", 0.0, 0)
        assert (recipe.lr, recipe.num_classes) == ((0.1, 100) if small else (0.2, 200))
        assert (recipe.val_fraction, recipe.select_split, recipe.test_median) == (0.0, None, 10)
        assert (recipe.crop_padding, recipe.crop_padding_mode) == ((4, "reflect") if small else (None, "constant"))
        assert recipe.mean == ([0.4914, 0.4822, 0.4465] if small else [0.485, 0.456, 0.406])
        assert recipe.std == ([0.2023, 0.1994, 0.201] if small else [0.229, 0.224, 0.225])
        assert (recipe.hflip, recipe.loss, recipe.smoothing) == (0.5, "cross_entropy", 0.0)
        if not small:
            assert (recipe.interpolation, recipe.train_interpolation, recipe.scale) == ("bicubic", "bicubic", [0.08, 1])
        if method in OPENMIXUPS[benchmark]:
            settings = recipe.mix_settings
            assert (settings["alpha"], settings["prob"]) == (OPENMIXUPS[benchmark][method], 1.0)
    assert load_recipe(f"{benchmark}_manifold_mixup").mix_settings["sites"] == ["input", "stage1", "stage2"]
    assert load_recipe(f"{benchmark}_puzzle_mix").mix_settings["block_num"] == [2, 4, 8, 16][: 4 if small else 3]
    assert load_recipe(f"{benchmark}_none", {"val_fraction": 0.1}).test_median is None, "an epoch is chosen"


def test_tiny_imagenet_and_scarce_data() -> None:
    assert load_recipe("tiny_imagenet_wrn28_10_none").model_kwargs == {"stem_stride": 2}
    assert load_recipe("tiny_imagenet_resnet152_none").model == "resnet152"
    assert load_recipe("tiny_imagenet_resnet152_none").crop_padding == 4
    scarce = load_recipe("cifar10_scarce_none")
    assert (scarce.model, scarce.train_per_class, scarce.epochs, scarce.sched) == ("preactresnet8", 100, 240, "cosine")
    assert (scarce.batch_size, scarce.lr, scarce.weight_decay) == (100, 0.1, 1e-4)


def test_unknown_names_show_the_nearest() -> None:
    assert "did you mean imagenet_hard_patchup" in problems("imagenet_hard_patchp")[0]
    assert "imagenet_hard_patchup" in problems("imagenet")[0], "a benchmark alone lists its recipes"


def test_the_default_recipe_is_complete() -> None:
    assert Recipe.from_dict({}) == Recipe()
    assert load_recipe().mix == "hard_patchup"
