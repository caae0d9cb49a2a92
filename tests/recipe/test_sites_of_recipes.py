"""The sites of a network in its recipes: which methods take them, and what share of the features blocks alter there."""

from pathlib import Path

import pytest
import timm
import torch

from timm_patchup.core.functional import expected_coverage, seed_rate
from timm_patchup.core.method import list_methods
from timm_patchup.errors import UserError
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.compose import list_benchmarks
from timm_patchup.training.build import build_model

# The paper states its sites for WRN-28-10 only; the authors' commands use input, stem and stage1 for every net.
TO_STAGE1, TO_STAGE2 = ["input", "stem", "stage1"], ["input", "stem", "stage1", "stage2"]
SITES = {"preactresnet": TO_STAGE1, "resnet": TO_STAGE1, "imagenet": TO_STAGE1, "wrn28_10": TO_STAGE2}
OURS = ["cifar10_scarce", "fashion_mini"]
# OpenMixup mixes at these, whatever the paper says.
OPENMIXUPS = {"manifold_mixup": ["input", "stage1", "stage2"]}
# Any model may be fine-tuned: its default sites, with blocks that alter gamma at any size.
NETWORKS = [benchmark for benchmark in list_benchmarks() if benchmark != "finetune"]


@pytest.mark.parametrize("benchmark", NETWORKS)
def test_sites_follow_from_the_network(benchmark: str) -> None:
    expected = TO_STAGE2 if benchmark in OURS else next(at for name, at in SITES.items() if name in benchmark[-14:])
    for method in ("hard_patchup", "soft_patchup", "manifold_mixup"):
        own = OPENMIXUPS.get(method, expected) if benchmark.endswith("_resnet18") else expected
        assert load_recipe(f"{benchmark}_{method}").mix_settings["sites"] == own
    assert load_recipe(f"{benchmark}_feature_cutmix").mix_settings["sites"] == expected[1:]
    for method in list_methods():
        settings = load_recipe(f"{benchmark}_{method}").mix_settings
        assert "sites" not in settings or settings["sites"]


@pytest.mark.parametrize("benchmark", NETWORKS)
def test_blocks_alter_about_gamma_at_every_site(benchmark: str) -> None:
    """Blocks of 7 would alter 63% of a 16 x 16 map with gamma 0.5, and 99% of an 8 x 8 map."""
    recipe = load_recipe(f"{benchmark}_hard_patchup")
    with torch.device("meta"):
        model = build_model(recipe)
    names, sizes = recipe.mix_settings["sites"], recipe.mix_settings["block_size"]
    sizes = sizes if isinstance(sizes, list) else [sizes] * len(names)
    for block, place in zip(sizes[1:], model.feature_info, strict=False):  # type: ignore[call-overload]
        side = recipe.input_size[1] // place["reduction"]
        share = expected_coverage(seed_rate(0.5, block, side, side), block, side, side)
        assert 0.4 < share < 0.56, (place["module"], side, block)


def test_block_sizes_follow_the_chosen_sites() -> None:
    name = "cifar100_wrn28_10_hard_patchup"
    chosen = load_recipe(name, {"mix_sites": ["stage2"]}).mix_settings
    assert (chosen["sites"], chosen["block_size"]) == (["stage2"], 5)
    chosen = load_recipe(name, {"mix_sites": ["stem", "stages.1"]}).mix_settings
    assert (chosen["sites"], chosen["block_size"]) == (["stem", "stages.1"], 7)
    chosen = load_recipe(name, {"mix_sites": ["stem", "stage2"], "mix_block_size": 3}).mix_settings
    assert (chosen["sites"], chosen["block_size"]) == (["stem", "stage2"], 3)
    chosen = load_recipe("tiny_imagenet_resnet101_soft_patchup", {"mix_sites": None}).mix_settings
    assert (chosen["sites"], chosen["block_size"]) == (None, [7, 7, 5, 7]), "the default set has four sites"
    assert load_recipe(name, {"mix_block_size": 3}).mix_settings["block_size"] == 3


def test_another_model_has_its_default_sites() -> None:
    other = load_recipe("fashion_mini_hard_patchup", {"model": "resnet18"}).mix_settings
    assert (other["sites"], other["block_size"]) == (None, 7)


def test_a_file_may_name_sites_for_its_own_network(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("include: [fashion_mini_hard_patchup]\nmix_sites: [stem]\nmix_block_size: 3\n")
    assert load_recipe(path).mix_settings["sites"] == ["stem"]
    path.write_text("include: [fashion_mini_hard_patchup]\nsites: [stem]\n")
    with pytest.raises(UserError, match=r"^sites must be a mapping of sites to block sizes, got \['stem'\]$"):
        load_recipe(path, {"mix": "soft_patchup"})


SITES_OF_A_FILE = "sites: {stem: 3, stage1: 5}\n"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("include: [fashion_mini_hard_patchup]\n", (["stem", "stage1"], [3, 5])),
        ("include: [cifar10, wrn28_10, sgd]\nmix: hard_patchup\n", (["stem", "stage1"], [3, 5])),
        ("mix: soft_patchup\n", (["stem", "stage1"], [3, 5])),
        ("include: [fashion_mini_hard_patchup]\nmix: soft_patchup\n", (["stem", "stage1"], [3, 5])),
        ("include: [fashion_mini_hard_patchup]\nmix_block_size: 1\n", (["stem", "stage1"], 1)),
        ("include: [fashion_mini_hard_patchup]\nmix_sites: [stage1, stem]\n", (["stage1", "stem"], [5, 3])),
        ("mix: hard_patchup\nmix_sites: [stage1]\n", (["stage1"], 5)),
    ],
)
def test_the_sites_of_a_file_are_applied(tmp_path: Path, text: str, at: tuple[list[str], object]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text + SITES_OF_A_FILE)
    settings = load_recipe(path).mix_settings
    assert (settings["sites"], settings["block_size"]) == at
    several = load_recipe(path, {"mix": ["hard_patchup", "cutmix"]}).mix_settings
    assert several["hard_patchup"]["sites"] == ["stem", "stage1"]


def test_the_sites_of_a_file_are_applied_to_each_of_several_methods(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("mix: [hard_patchup, cutmix, manifold_mixup]\nmix_settings: {hard_patchup: {gamma: 0.4}}\n")
    path.write_text(path.read_text() + SITES_OF_A_FILE)
    settings = load_recipe(path).mix_settings
    assert (settings["hard_patchup"]["sites"], settings["hard_patchup"]["gamma"]) == (["stem", "stage1"], 0.4)
    assert settings["hard_patchup"]["block_size"] == [3, 5]
    assert settings["manifold_mixup"]["sites"] == ["stem", "stage1"]
    assert "sites" not in settings["cutmix"]
    including = tmp_path / "including.yaml"
    including.write_text("include: [own.yaml]\nsites: {stem: 7}\n")
    assert load_recipe(including).mix_settings["manifold_mixup"]["sites"] == ["stem"]


def test_the_sites_of_an_included_network_are_applied(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text("model: resnet18\n" + SITES_OF_A_FILE)
    path = tmp_path / "own.yaml"
    path.write_text("include: [net.yaml]\nmix: manifold_mixup\n")
    assert load_recipe(path).mix_settings["sites"] == ["stem", "stage1"]


@pytest.mark.parametrize("sites", ["{stem: none}", "{stem: 0}", "{stem: 2.5}", "{stem: true}", "stem"])
def test_wrong_sites_are_refused(tmp_path: Path, sites: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"include: [fashion_mini_cutmix]\nsites: {sites}\n")
    with pytest.raises(UserError, match=r"^sites must be a mapping"):
        load_recipe(path)


def test_stages_are_as_large_as_the_files_say() -> None:
    """The reductions that the comments of the parts rely on."""
    assert [place["reduction"] for place in timm.create_model("resnet101").feature_info[:3]] == [2, 4, 8]
    assert [place["reduction"] for place in timm.create_model("wrn16_2").feature_info[:3]] == [1, 1, 2]
