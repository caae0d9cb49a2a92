"""The registry of methods: what it holds, what create_mixer makes of it, methods of a user's own, the method none."""

import argparse
import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from timm.data.mixup import mixup_target
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from tests.support.expectations import tiny
from timm_patchup import Method, Mixer, PatchUp, create_mixer, launch, list_methods, register_method
from timm_patchup.cli.recipe_flags import add_recipe_flags, given_keys
from timm_patchup.core import method as method_module
from timm_patchup.core.draw import Change, Mix
from timm_patchup.core.method import DrawContext, SiteMethod, make_method, method_settings, method_type
from timm_patchup.core.settings import setting
from timm_patchup.errors import UserError, WrongType
from timm_patchup.methods.cutmix import CutMix
from timm_patchup.recipe import Recipe, load_recipe

from .every_method import ERASING, METHODS, MIXING, WITH_SITES


def test_kinds_of_methods_are_found() -> None:
    assert len(METHODS) >= 10
    assert sorted(set(METHODS)) == METHODS
    # What these are is known; a method that is added belongs wherever its change puts it.
    assert {"cutmix", "feature_cutmix", "hard_patchup", "manifold_mixup", "mixup", "puzzle_mix", "soft_patchup"} <= (
        MIXING
    )
    assert {"cutout", "dropblock"} <= ERASING
    assert not MIXING & ERASING
    assert "none" not in MIXING | ERASING
    assert {"dropblock", "feature_cutmix", "hard_patchup", "manifold_mixup", "soft_patchup"} <= set(WITH_SITES)
    assert not {"cutmix", "cutout", "mixup", "none", "puzzle_mix"} & set(WITH_SITES), "old runs store no such key"


COMMON = {
    "block_size": 7,
    "coverage": "paper",
    "sites": None,
    "mask": "batch",
    "input_mask": "rectangle",
    "objective": "paper",
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "hard_patchup": {"prob": 0.7, "gamma": 0.5} | COMMON,
    "soft_patchup": {"prob": 1.0, "gamma": 0.75, "alpha": 2.0, "lam": "batch"} | COMMON,
    "none": {},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_of_the_registry(name: str) -> None:
    declared = method_settings(name)
    assert {key: known.default for key, known in declared.items()} == DEFAULTS[name]
    assert list(declared) == sorted(declared)
    assert all(known.help for known in declared.values())


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_defaults_are_the_same_wherever_a_user_meets_them(mode: str, model: nn.Module, tmp_path: Path) -> None:
    """Constructor, registry, recipes of the embedded benchmark and of a file, help of the flags: one declaration."""
    name = f"{mode}_patchup"
    expected = DEFAULTS[name]
    assert {key: known.default for key, known in method_settings(name).items()} == expected
    assert make_method(name).settings() == expected
    assert method_type(name)().settings() == expected
    by_constructor = PatchUp(model, mode=mode)  # type: ignore[arg-type]
    assert by_constructor.method == make_method(name)
    by_constructor.detach()
    assert create_mixer(name, model).method == make_method(name)
    # A benchmark states the sites of its network and the blocks there; all else is the method's.
    benchmark = expected | {"sites": ["input", "stem", "stage1", "stage2"], "block_size": [7, 5, 5, 3]}
    assert load_recipe(f"fashion_mini_{name}").mix_settings == benchmark
    assert load_recipe(f"fashion_mini_{name}", {"mix_sites": None, "mix_block_size": 7}).method == make_method(name)
    (tmp_path / "own.yaml").write_text(f"mix: {name}\n")
    assert load_recipe(tmp_path / "own.yaml").mix_settings == expected
    assert load_recipe("fashion_mini_none", {"mix": name}).mix_settings == benchmark
    for words in (["--recipe", f"fashion_mini_{name}"], ["--mix", name]):
        actions = recipe_parser(words)._option_string_actions
        for key, value in benchmark.items():
            text = actions[f"--mix-{key.replace('_', '-')}"].help
            shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            assert text == f"{name}: {method_settings(name)[key].help} (default: {shown})"


def recipe_parser(words: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_recipe_flags(parser, words)
    return parser


def test_create_mixer_makes_what_the_settings_ask_for(model: nn.Module) -> None:
    for name in ("hard_patchup", "soft_patchup"):
        mix = create_mixer(name, model)
        assert mix.method == method_type(name)()
        assert [site.name for site in mix.sites] == ["input", "stem", "stage1", "stage2"]
        mix.detach()
        mix = create_mixer(name, model, gamma=0.25, sites=["stem"], seed=5, label_smoothing=0.1, num_classes=7)
        assert mix.method.settings() == DEFAULTS[name] | {"gamma": 0.25, "sites": ["stem"]}
        assert [site.name for site in mix.sites] == ["stem"]
        assert (mix.state_dict()["seed"], mix.label_smoothing, mix.num_classes) == (5, 0.1, 7)
        mix.detach()


# What cannot be registered


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[Method]]:
    """A copy of the registry, which is thrown away after the test."""
    own = dict(method_module._METHODS)
    monkeypatch.setattr(method_module, "_METHODS", own)
    return own


def test_a_name_is_registered_once(registry: dict[str, type[Method]]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Another(Method):
        pass

    with pytest.raises(UserError, match=r"^method 'cutmix' is already registered, by CutMix$"):
        register_method("cutmix")(Another)
    assert registry["cutmix"] is CutMix
    assert Another.name == ""
    register_method("another")(Another)
    assert Another.name == "another"
    assert "another" in list_methods()


class NotADataclass(Method):
    pass


@dataclass
class NotAMethod:
    prob: float = 1.0


@dataclass(frozen=True)
class FrozenButNotAMethod:
    prob: float = 1.0


class BelowADataclass(CutMix):
    """It has the fields of CutMix: what it declares itself would not be a setting."""

    beta: float = setting(1.0, "not seen")


@pytest.mark.parametrize(
    "kind",
    [NotADataclass, NotAMethod, FrozenButNotAMethod, BelowADataclass, lambda place: None, CutMix()],
    ids=["no dataclass", "not frozen", "no method", "subclass of a dataclass", "function", "instance"],
)
def test_only_frozen_dataclasses_are_methods(kind: Any, registry: dict[str, type[Method]]) -> None:
    before = dict(registry)
    message = r"^method 'own' must be a frozen dataclass derived from Method, got "
    with pytest.raises(WrongType, match=message):
        register_method("own")(kind)
    assert registry == before


# A method of a user's own


def test_a_method_that_decides_nothing_ends_in_one_line(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Nothing(Method):
        pass

    with pytest.raises(NotImplementedError, match=r"^Nothing must define change\(self, context\): it returns "):
        Mixer(model, Nothing())(images, labels)


@pytest.fixture
def swap_rows(registry: dict[str, type[Method]]) -> type[Method]:
    """A method with two settings, as a user would write it: swap the first rows of the features."""

    @register_method("swap_rows")
    @dataclass(frozen=True, kw_only=True)
    class SwapRows(SiteMethod):
        """Swap the first rows of the features at a random site."""

        share: float = setting(0.5, "share of the rows that is swapped", low=0, high=1)
        count_from: int = setting(0, "the first row", low=0)

        def change(self, context: DrawContext) -> Change:
            height, width = context.shape[2:]
            rows = torch.arange(height, device=context.device)[:, None].expand(height, width) - self.count_from
            return Mix(((rows >= 0) & (rows < self.share * height))[None, None])

    return SwapRows


def test_own_method_in_create_mixer(swap_rows: type[Method], model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = create_mixer("swap_rows", model, sites=["input"], share=0.25)
    assert mix.method == swap_rows(sites=("input",), share=0.25)  # type: ignore[call-arg]
    x, target = mix(images, labels)
    partner = mix.draw.partner  # type: ignore[union-attr]
    assert torch.equal(x[:, :, :16], images[partner, :, :16])
    assert torch.equal(x[:, :, 16:], images[:, :, 16:])
    own = F.one_hot(labels, NUM_CLASSES).float()
    torch.testing.assert_close(target, 0.75 * own + 0.25 * own[partner])
    mix.loss(model(x), target).backward()
    with pytest.raises(UserError, match=r"^share must be a number in \[0, 1\], got 2$"):
        create_mixer("swap_rows", model, share=2)


@pytest.mark.usefixtures("swap_rows")
def test_own_method_in_a_recipe(tmp_path: Path) -> None:
    values = {"mix": "swap_rows", "mix_share": 0.25}
    expected = {"count_from": 0, "prob": 1.0, "share": 0.25, "sites": None}
    assert Recipe.from_dict(values).mix_settings == expected
    assert load_recipe("cifar10_wrn28_10_hard_patchup", values).mix_settings == expected
    (tmp_path / "own.yaml").write_text("mix: swap_rows\nmix_share: 25e-2\n")
    assert load_recipe(tmp_path / "own.yaml").mix_settings == expected
    with pytest.raises(UserError) as caught:
        load_recipe("fashion_mini_none", values | {"mix_share": 2, "mix_count_form": 3})
    unknown, outside = caught.value.problems
    assert unknown.startswith("unknown key 'mix_count_form'; did you mean mix_count_from")
    assert outside == "mix_share must be a number in [0, 1], got 2"


@pytest.mark.usefixtures("swap_rows")
def test_own_method_as_flags(
    train_script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--mix", "swap_rows", "--mix-share", "25e-2", "--mix-sites", "stem", "stage1"]
    recipe = load_recipe("fashion_mini_none", given_keys(recipe_parser(words).parse_args(words)))
    assert recipe.mix_settings == {"count_from": 0, "prob": 1.0, "share": 0.25, "sites": ["stem", "stage1"]}
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)
    out = tmp_path / "args.yaml"
    launch.main([str(train_script), *words, "--output", str(out)])
    assert "rank 0 of 1: MixTask" in capsys.readouterr().out
    written = yaml.safe_load(out.read_text())
    assert {key: written[f"mix_{key}"] for key in recipe.mix_settings} == recipe.mix_settings


# The method none


def test_method_none_alters_nothing(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = create_mixer("none", model, label_smoothing=0.1)
    for _ in range(3):
        x, target = mix(images, labels)
        output = model(x)
        assert x is images
        assert torch.equal(output, clean(images))
        torch.testing.assert_close(target, mixup_target(labels, NUM_CLASSES, smoothing=0.1))
        expected = F.cross_entropy(output, labels, label_smoothing=0.1).item()
        assert mix.loss(output, target).item() == pytest.approx(expected, abs=1e-6)
    # Any module will do, also one without named sites.
    other = create_mixer("none", tiny(), num_classes=NUM_CLASSES)
    assert other(images, labels)[0] is images
