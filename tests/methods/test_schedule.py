"""Schedules: off from an epoch on, settings that rise over the first ones, and nothing but the epoch decides."""

from typing import Any

import pytest

from tests.conftest import NUM_CLASSES, within
from timm_patchup import Mixer, OneOf, PatchUp, Schedule, create_mixer
from timm_patchup.core.method import Method
from timm_patchup.errors import UserError
from timm_patchup.methods.cutmix import CutMix
from timm_patchup.methods.dropblock import DropBlock
from timm_patchup.methods.manifold_mixup import Mixup
from timm_patchup.methods.no_mix import NoMix
from timm_patchup.methods.patchup import HardPatchUp
from timm_patchup.recipe import load_recipe

from .every_method import CASES, batch, last, mixer_of, same, step, tiny_net


def mixer(method: Method, **schedule: Any) -> Mixer:
    return Mixer(tiny_net(), method, num_classes=NUM_CLASSES, schedule=Schedule(**schedule))


def test_off_from_an_epoch_on() -> None:
    mix = mixer(CutMix(), off_epoch=2)
    for epoch in (0, 1.99, 2, 3, 1):  # back again, too: no state
        mix.set_epoch(epoch)
        count = mix.state_dict()["count"]
        step(mix, *batch())
        assert (last(mix).site is None) == (epoch >= 2)
        assert mix.state_dict()["count"] == count + (epoch < 2), "nothing is drawn"


def test_prob_rises_linearly() -> None:
    mix = mixer(CutMix(prob=0.8), warmup_epochs=4)
    trials = 400
    for epoch, expected in ((0, 0.0), (1, 0.2), (2.5, 0.5), (4, 0.8), (9, 0.8)):
        mix.set_epoch(epoch)
        altered = 0
        for _ in range(trials):
            step(mix, *batch(2))
            altered += last(mix).site is not None
        assert within(altered, trials, expected)
        assert expected or not altered


def test_settings_rise_in_each_method_that_has_them() -> None:
    schedule = Schedule(warmup_epochs=10, warmup=("gamma", "drop_prob"))
    methods = OneOf([HardPatchUp(gamma=0.4), DropBlock(drop_prob=0.2), CutMix()], weights=(3.0, 2.0, 1.0))
    assert schedule.method_at(methods, 5) == OneOf(
        [HardPatchUp(gamma=0.2), DropBlock(drop_prob=0.1), CutMix()], weights=(3.0, 2.0, 1.0)
    )
    assert schedule.method_at(methods, 10) is methods
    assert schedule.method_at(HardPatchUp(gamma=0.4), 0) == HardPatchUp(gamma=0.0)
    mix = mixer(OneOf([HardPatchUp(sites=("first",), prob=1.0), CutMix()]), warmup_epochs=10, warmup=("gamma",))
    mix.set_epoch(1)
    for _ in range(20):
        step(mix, *batch())
        assert last(mix).method in (HardPatchUp(sites=("first",), prob=1.0, gamma=0.05), CutMix()), "as it acted"


@pytest.mark.parametrize("name", CASES)
def test_without_a_schedule_and_after_it_draws_are_the_same(name: str) -> None:
    schedule = Schedule(off_epoch=9, warmup_epochs=0 if name == "none" else 2)
    plain, scheduled = mixer_of(name, tiny_net()), mixer_of(name, tiny_net(), schedule=schedule)
    for epoch in range(2, 6):
        scheduled.set_epoch(epoch)
        for mix in (plain, scheduled):
            step(mix, *batch(seed=epoch))
        assert same(last(plain), last(scheduled))


def test_a_schedule_that_is_never_told_the_epoch_is_an_error() -> None:
    mix = PatchUp(tiny_net(), num_classes=NUM_CLASSES, sites=["first"], schedule=Schedule(off_epoch=3))
    with pytest.raises(RuntimeError, match=r"^the schedule needs the epoch: call mix\.set_epoch\(epoch\) at the start"):
        mix(*batch())
    mix.set_epoch(0)
    step(mix, *batch())


@pytest.mark.parametrize(
    ("method", "schedule", "message"),
    [
        (CutMix(), {"warmup_epochs": 2, "warmup": ("gamma",)}, "warmup: gamma is not a setting of cutmix"),
        (OneOf([CutMix(), Mixup()]), {"warmup_epochs": 2, "warmup": ("gamma",)}, "not a setting of cutmix or mixup"),
        (CutMix(), {"warmup_epochs": 2, "warmup": ("alpha",)}, "warmup: alpha cannot rise from 0, only numbers from 0"),
        (
            DropBlock(sites=("first",)),
            {"warmup_epochs": 2, "warmup": ("block_size",)},
            "warmup: block_size cannot rise",
        ),
        (NoMix(), {"warmup_epochs": 2}, "warmup: prob is not a setting of none"),
        (CutMix(), {"warmup_epochs": -1}, "warmup_epochs must be a whole number of at least 0, got -1"),
        (CutMix(), {"off_epoch": 1.5}, "off_epoch must be a whole number of at least 0, got 1.5"),
    ],
)
def test_what_cannot_be_scheduled(method: Method, schedule: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        mixer(method, **schedule)
    (line,) = caught.value.problems
    assert message in line


@pytest.mark.parametrize("epoch", [-1, float("nan"), "1"])
def test_an_epoch_is_a_number_from_0_on(epoch: Any) -> None:
    with pytest.raises(UserError, match=r"^epoch must be a number of at least 0, got "):
        mixer(CutMix(), off_epoch=3).set_epoch(epoch)


def test_in_recipes() -> None:
    keys = {"mixup_off_epoch": 8, "mixup_warmup_epochs": 3, "mixup_warmup": ["prob", "gamma"]}
    recipe = load_recipe("fashion_mini_hard_patchup", keys)
    assert recipe.schedule == Schedule(off_epoch=8, warmup_epochs=3, warmup=("prob", "gamma"))
    assert load_recipe("fashion_mini_hard_patchup").schedule == Schedule()
    for overrides, message in (
        ({"mix": "none", "mixup_off_epoch": 3}, "mixup_off_epoch has no effect with the mix none"),
        ({"mix": "cutmix", "mixup_warmup": ["gamma"]}, "mixup_warmup has no effect without mixup_warmup_epochs"),
        (
            {"mix": "cutmix", "mixup_warmup_epochs": 2, "mixup_warmup": ["gamma"]},
            "mixup_warmup: gamma is not a setting of cutmix",
        ),
    ):
        with pytest.raises(UserError) as caught:
            load_recipe("fashion_mini_none", overrides)
        assert caught.value.problems == [message]


def test_a_mixer_of_names_takes_a_schedule() -> None:
    mix = create_mixer(["cutmix", "mixup"], tiny_net(), num_classes=NUM_CLASSES, schedule=Schedule(off_epoch=1))
    mix.set_epoch(1)
    step(mix, *batch())
    assert last(mix).site is None
