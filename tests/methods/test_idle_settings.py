"""Settings that another one disables: every one is refused, alone, in a recipe and among several methods."""

from dataclasses import dataclass
from typing import Any

import pytest

from timm_patchup import Method, list_methods
from timm_patchup.core.method import make_method, method_settings
from timm_patchup.core.schedule import Schedule
from timm_patchup.core.settings import on, setting
from timm_patchup.errors import NoEffect, UserError
from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.recipe.compose import list_benchmarks
from timm_patchup.recipe.layers import stored_recipe

# Method and setting: what disables it, a value other than its default, the reason, and what makes it effective.
CASES: dict[tuple[str, str], tuple[dict[str, Any], Any, str, dict[str, Any]]] = {
    ("puzzle_mix", "t_eps"): ({"transport": False}, 0.5, "without transport", {"transport": True}),
    ("puzzle_mix", "transport_size"): ({"transport": False}, "block", "without transport", {"transport": True}),
    ("puzzle_mix", "cell"): ({"gamma": 0.0}, 2, "without gamma", {"gamma": 0.5}),
    **{
        (method, "input_mask"): ({"sites": ["stem"]}, "blocks", "at sites without the input", {"sites": None})
        for method in ("hard_patchup", "soft_patchup")
    },
}
EACH = pytest.mark.parametrize(("method", "name"), CASES)


def keys(method: str, **settings: Any) -> dict[str, Any]:
    return {"mix": method, **{f"mix_{name}": value for name, value in settings.items()}}


def test_every_declared_setting_has_a_case() -> None:
    declared = {
        (method, name) for method in list_methods() for name, one in method_settings(method).items() if one.needs
    }
    assert set(CASES) == declared


@EACH
def test_a_setting_without_effect_is_refused_with_the_reason(method: str, name: str) -> None:
    disabling, value, reason, enabling = CASES[method, name]
    with pytest.raises(NoEffect) as caught:
        make_method(method, **disabling, **{name: value})
    assert caught.value.problems == [f"{name} has no effect {reason}"]
    assert make_method(method, **{**disabling, **enabling, name: value}).settings()[name] == value
    with pytest.raises(NoEffect) as caught:
        Recipe.from_dict(keys(method, **disabling, **{name: value}))
    assert caught.value.problems == [f"mix_{name} has no effect {reason}"]
    both = {"mix": [method, "cutmix"], "mix_settings": {method: {**disabling, name: value}}}
    with pytest.raises(NoEffect) as caught:
        Recipe.from_dict(both)
    assert caught.value.problems == [f"{method}.{name} has no effect {reason}"]


@EACH
def test_stored_recipes_of_earlier_editions_stay_readable(method: str, name: str) -> None:
    disabling, value, _, _ = CASES[method, name]
    plain = Recipe.from_dict(keys(method, **disabling))
    assert stored_recipe(plain.to_dict() | {f"mix_{name}": value, "clip_mode": "agc"}) == plain
    both = Recipe.from_dict({"mix": [method, "cutmix"], "mix_settings": {method: disabling}})
    stored = both.to_dict()
    stored["mix_settings"] = {**stored["mix_settings"], method: {**stored["mix_settings"][method], name: value}}
    assert stored_recipe(stored) == both


def test_an_override_disables_settings_of_the_recipe_and_not_of_the_caller() -> None:
    name = "tiny_imagenet_wrn28_10_puzzle_mix"
    assert load_recipe(name).mix_settings["transport_size"] == "block"
    assert load_recipe(name, {"mix_transport": False}).mix_settings["transport_size"] == "piece"
    with pytest.raises(NoEffect, match=r"^mix_t_eps has no effect without transport$"):
        load_recipe(name, {"mix_transport": False, "mix_t_eps": 0.3})
    both = {"mix": ["puzzle_mix", "cutmix"], "mix_transport": False}
    assert load_recipe(name, both).mix_settings["puzzle_mix"]["transport_size"] == "piece"
    with pytest.raises(NoEffect, match=r"^puzzle_mix.t_eps has no effect without transport$"):
        load_recipe(name, {**both, "mix_t_eps": 0.3})


def test_every_recipe_can_be_confined_to_one_site() -> None:
    confined = 0
    for benchmark in list_benchmarks():
        for site in ("input", "stem"):
            recipe = load_recipe(f"{benchmark}_soft_patchup", {"mix_sites": [site]})
            confined += recipe.mix_settings["sites"] == [site]
    assert confined == 2 * len(list_benchmarks()) >= 30


def test_what_has_no_effect_cannot_rise() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Own(Method):
        swaps: bool = setting(True, "whether it swaps")
        share: float = setting(0.5, "share that is swapped", low=0, high=1, needs=on("swaps"))

    schedule = Schedule(warmup_epochs=2, warmup=("share",))
    schedule.check(Own())
    with pytest.raises(UserError, match=r"^mixup_warmup: share has no effect without swaps$"):
        schedule.check(Own(swaps=False), prefix="mixup_")
