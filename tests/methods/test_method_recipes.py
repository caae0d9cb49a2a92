"""Every method can be reached: defaults, sites, the launcher, a recipe per benchmark, and a card that is true."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from timm.data import create_transform
from torch import nn

from tests.conftest import NUM_CLASSES
from timm_patchup import create_mixer, launch, methods
from timm_patchup.core.method import make_method, method_settings
from timm_patchup.core.settings import plain
from timm_patchup.recipe.compose import list_benchmarks, list_recipe_methods, load_recipe

from .every_method import BY_SALIENCY, METHODS, WITH_SITES, batch, step

# Augmentations of timm that are recipes, but no methods.
AS_RECIPES_ONLY = sorted(set(list_recipe_methods()) - set(METHODS))


def test_defaults_are_those_of_the_papers() -> None:
    expected: dict[str, dict[str, Any]] = {
        "mixup": {"alpha": 1.0, "lam": "batch", "prob": 1.0},
        "cutmix": {"alpha": 1.0, "prob": 1.0},
        "cutout": {"length": 16, "mask": "sample", "prob": 1.0},
        "dropblock": {
            "at": "all",
            "block_size": 7,
            "drop_prob": 0.1,
            "mask": "channel",
            "prob": 1.0,
            "sites": None,
        },
        "manifold_mixup": {"alpha": 2.0, "lam": "batch", "prob": 1.0, "sites": None},
        "feature_cutmix": {"alpha": 1.0, "prob": 1.0, "sites": None},
    }
    for name, settings in expected.items():
        defaults = {key: known.default for key, known in method_settings(name).items()}
        assert defaults == settings, name
        assert make_method(name).objective == "l2", "the loss of the mixed target, once"


@pytest.mark.parametrize("name", [name for name in METHODS if name in WITH_SITES])
def test_default_sites_are_those_of_patchup_without_the_input_for_feature_cutmix(name: str, model: nn.Module) -> None:
    at = [site.name for site in create_mixer(name, model).sites]
    assert at == ["input", "stem", "stage1", "stage2"][name in ("dropblock", "feature_cutmix") :]


@pytest.mark.parametrize("name", METHODS)
def test_any_model_will_do_for_a_method_at_the_input(name: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(360, NUM_CLASSES))
    if name in WITH_SITES:
        with pytest.raises(ValueError, match=r"^Sequential has no feature_info.* it has no default sites inside it"):
            create_mixer(name, model)
        return
    mix = create_mixer(name, model, num_classes=NUM_CLASSES)
    altered = []
    for _ in range(4):  # a method that looks at the images may leave a batch as it is
        mixed, target, output = step(mix, *batch())
        mix.loss(output, target).backward()
        altered.append(not torch.equal(mixed, batch()[0]))
    assert any(altered) == (name != "none")
    assert all(altered) or name == "none" or name in BY_SALIENCY


@pytest.mark.parametrize("name", METHODS)
def test_launcher_runs_every_method(
    name: str, train_script: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)
    own = {"dropblock": ["--mix-block-size", "5", "--mix-drop-prob", "0.2"], "cutout": ["--mix-length", "9"]}
    launch.main([str(train_script), "--mix", name, "--output", str(tmp_path / "args.yaml"), *own.get(name, [])])
    assert f"rank 0 of 1: {'ClassificationTask' if name == 'none' else 'MixTask'}" in capsys.readouterr().out
    written = yaml.safe_load((tmp_path / "args.yaml").read_text())
    known = {key: declared.default for key, declared in method_settings(name).items()}
    known |= {"dropblock": {"block_size": 5, "drop_prob": 0.2}, "cutout": {"length": 9}}.get(name, {})
    assert {key: value for key, value in written.items() if key.startswith("mix_") and value is not None} == {
        f"mix_{key}": plain(value) for key, value in known.items() if value is not None
    }


def test_every_method_has_a_recipe_for_every_benchmark() -> None:
    assert set(METHODS) <= set(list_recipe_methods())
    assert {"augmix", "autoaugment"} <= set(AS_RECIPES_ONLY)
    for benchmark in list_benchmarks():
        for name in METHODS:
            recipe = load_recipe(f"{benchmark}_{name}")
            assert recipe.mix == name
            if recipe.loss == "jsd":
                assert recipe.aa is not None, "splits that are compared must differ"
            if name in WITH_SITES:
                recipe = load_recipe(f"{benchmark}_{name}", {"mix_sites": ["input"]})
            create_mixer(name, nn.Identity(), **recipe.mix_settings)  # every value is a legal one


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("cifar10_wrn28_10_mixup", {"alpha": 1.0}),
        ("svhn_wrn28_10_mixup", {"alpha": 1.0}),
        ("tiny_imagenet_wrn28_10_mixup", {"alpha": 0.2}),
        ("cifar10_wrn28_10_cutmix", {"prob": 0.4, "alpha": 1.0}),
        ("cifar100_preactresnet18_cutmix", {"prob": 0.4}),
        ("svhn_wrn28_10_cutmix", {"prob": 0.4}),
        ("imagenet_cutmix", {"prob": 1.0}),
        ("cifar10_scarce_cutout", {"length": 16}),
        ("cifar100_wrn28_10_cutout", {"length": 8}),
        ("svhn_wrn28_10_cutout", {"length": 20}),
        ("fashion_mini_cutout", {"length": 8}),
        ("fashion_mini_cutmix", {"prob": 0.4}),
        ("fashion_mini_manifold_mixup", {"alpha": 1.5}),
        ("tiny_imagenet_wrn28_10_cutmix", {"prob": 0.4, "alpha": 1.0}),
        ("tiny_imagenet_resnet101_cutmix", {"prob": 0.4}),
        ("tiny_imagenet_resnet18_cutmix", {"prob": 1.0, "alpha": 1.0}),  # OpenMixup's
        ("cifar100_resnet18_cutmix", {"prob": 1.0, "alpha": 0.2}),
        ("tiny_imagenet_wrn28_10_manifold_mixup", {"alpha": 0.2}),
        ("tiny_imagenet_resnet101_manifold_mixup", {"alpha": 0.2}),
        ("tiny_imagenet_resnet152_puzzle_mix", {"alpha": 0.2, "transport_size": "block"}),
        ("cifar10_wrn28_10_puzzle_mix", {"alpha": 1.0, "transport_size": "piece"}),
        ("cifar10_wrn28_10_manifold_mixup", {"alpha": 1.5}),
        ("cifar100_wrn28_10_manifold_mixup", {"alpha": 1.5}),
        ("svhn_wrn28_10_manifold_mixup", {"alpha": 1.5}),
        ("imagenet_manifold_mixup", {"alpha": 1.0}),
        ("imagenet_puzzle_mix", {"alpha": 1.0, "transport_size": "block", "cell": 2, "clean_lam": 0.0}),
        ("tiny_imagenet_wrn28_10_puzzle_mix", {"cell": 4}),
        ("cifar10_wrn28_10_dropblock", {"drop_prob": 0.1, "block_size": 7, "sites": ["stem", "stage1"]}),
        ("tiny_imagenet_wrn28_10_dropblock", {"sites": ["stem", "stage1"]}),
        ("cifar100_preactresnet34_dropblock", {"sites": ["stem", "stage1"]}),
        ("fashion_mini_dropblock", {"sites": ["stem", "stage1", "stage2"]}),
        ("cifar10_scarce_dropblock", {"sites": ["stem", "stage1", "stage2"]}),
        ("cifar10_wrn28_10_feature_cutmix", {"sites": ["stem", "stage1", "stage2"]}),
        ("imagenet_feature_cutmix", {"prob": 1.0, "alpha": 1.0}),
    ],
)
def test_recipes_have_the_settings_of_the_paper(recipe: str, settings: dict[str, Any]) -> None:
    assert settings.items() <= load_recipe(recipe).mix_settings.items()


@pytest.mark.parametrize("name", AS_RECIPES_ONLY)
def test_augmentations_of_timm_are_recipes_without_a_mix(name: str) -> None:
    given = load_recipe(f"cifar10_wrn28_10_{name}")
    assert given.mix == "none"
    assert given.mix_settings == {}
    assert given.aa is not None
    assert load_recipe("cifar10_wrn28_10_hard_patchup", {"mix": name}) == given
    transform = create_transform((3, 32, 32), is_training=True, auto_augment=given.aa)
    assert name in type(transform.transforms[-3]).__name__.lower() or name in repr(transform).lower()


def test_another_mix_brings_its_own_settings() -> None:
    changed = load_recipe("cifar100_wrn28_10_hard_patchup", {"mix": "cutout"})
    assert changed == load_recipe("cifar100_wrn28_10_cutout")


def as_text(value: object) -> str:
    """Return a value as flags and recipes spell it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def test_every_method_has_a_card_with_its_settings_and_defaults() -> None:
    text = (Path(methods.__file__).parent / "README.md").read_text()
    cards = dict(re.findall(r"^### ([\w, ]+)\n(.*?)(?=^##)", text, flags=re.MULTILINE | re.DOTALL))
    named = {name: (title.split(", ").index(name), card) for title, card in cards.items() for name in title.split(", ")}
    assert set(named) == set(METHODS)
    for name, (column, card) in named.items():
        assert f"[`{name}`](#" in text
        rows = [line.strip("| ").split(" | ") for line in card.splitlines() if line.startswith("| `")]
        shown = {row[0].strip("`"): row[1 + column] for row in rows if row[1 + column] != "-"}
        defaults = {key: plain(known.default) for key, known in method_settings(name).items()}
        assert shown == {
            key: " ".join(map(str, value)) if isinstance(value, list) else as_text(value)
            for key, value in defaults.items()
        }, name
        assert name == "none" or "arXiv" in card
