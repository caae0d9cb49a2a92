"""A wrong setting ends in one error with its name, what was given and what is allowed; nothing stays hooked."""

import re

import pytest
from torch import nn

from tests.support.expectations import hook_count
from timm_patchup import Mixer, MixTask, PatchUp, create_mixer
from timm_patchup.methods.patchup import HardPatchUp

NAN = float("nan")


@pytest.mark.parametrize("name", ["gamma", "prob"])
@pytest.mark.parametrize("value", [-0.1, 1.1, NAN, float("inf"), -float("inf")])
def test_share_outside_its_range(name: str, value: float, model: nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be a number in \[0, 1\], got {re.escape(repr(value))}$"):
        PatchUp(model, **{name: value})  # type: ignore[arg-type]
    assert hook_count(model) == 0


@pytest.mark.parametrize("name", ["gamma", "prob"])
@pytest.mark.parametrize("value", ["0.5", None, True, [0.5]])
def test_share_that_is_no_number(name: str, value: object, model: nn.Module) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must be a number in \[0, 1\], got {re.escape(repr(value))}$"):
        PatchUp(model, **{name: value})  # type: ignore[arg-type]
    assert hook_count(model) == 0


@pytest.mark.parametrize("value", [0, -3, [7, 7, 7, 0]])
def test_block_below_one(value: int | list[int], model: nn.Module) -> None:
    wrong = value[-1] if isinstance(value, list) else value
    with pytest.raises(ValueError, match=f"^block_size must be a whole number of at least 1, got {wrong}$"):
        PatchUp(model, block_size=value)
    assert hook_count(model) == 0


@pytest.mark.parametrize("value", ["7", "7777", 2.5, None, True, [7, 7, 7, 2.5]])
def test_block_that_is_no_whole_number(value: object, model: nn.Module) -> None:
    wrong = value[-1] if isinstance(value, list) else value
    message = f"^block_size must be a whole number of at least 1, got {re.escape(repr(wrong))}$"
    with pytest.raises(TypeError, match=message):
        PatchUp(model, block_size=value)  # type: ignore[arg-type]
    assert hook_count(model) == 0


@pytest.mark.parametrize("value", [[], [7], [7, 7, 7], [7, 7, 7, 7, 7]])
def test_block_list_of_wrong_length(value: list[int], model: nn.Module) -> None:
    message = f"^block_size has {len(value)} values, but there are 4 sites: input, stem, stage1, stage2; give one value"
    with pytest.raises(ValueError, match=message if value else "^block_size is empty: give at least one value$"):
        PatchUp(model, block_size=value)
    assert hook_count(model) == 0


@pytest.mark.parametrize("value", [0, 0.0, -1.0, NAN, float("inf")])
def test_alpha_not_above_zero(value: float, model: nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"^alpha must be a number above 0, got {re.escape(repr(value))}$"):
        PatchUp(model, mode="soft", alpha=value)


def test_alpha_is_no_setting_of_hard_patchup(model: nn.Module) -> None:
    known = "block_size, coverage, gamma, input_mask, mask, objective, prob, sites"
    with pytest.raises(ValueError, match=f"^unknown setting of hard_patchup 'alpha': choose from {known}"):
        PatchUp(model, alpha=2.0)


@pytest.mark.parametrize("value", [-0.1, 1.0, NAN])
def test_label_smoothing_outside_its_range(value: float, model: nn.Module) -> None:
    with pytest.raises(
        ValueError, match=rf"^label_smoothing must be a number in \[0, 1\), got {re.escape(repr(value))}$"
    ):
        PatchUp(model, label_smoothing=value)


@pytest.mark.parametrize(
    ("name", "value", "choices", "near"),
    [
        ("mode", "hrad", "hard, soft", "hard"),
        ("mask", "samples", "batch, sample", "sample"),
        ("input_mask", "block", "rectangle, blocks", "blocks"),
        ("objective", "papr", "paper, l1, l2, authors", "paper"),
    ],
)
def test_unknown_choice_names_the_nearest(name: str, value: str, choices: str, near: str, model: nn.Module) -> None:
    message = f"^{name} must be one of {choices}, got '{value}'; did you mean {near}\\?$"
    with pytest.raises(ValueError, match=message):
        PatchUp(model, **{name: value})  # type: ignore[arg-type]
    assert hook_count(model) == 0


def test_unknown_method_names_the_nearest(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"unknown method 'hard_pathcup': choose from .*did you mean hard_patchup"):
        create_mixer("hard_pathcup", model)


def test_unknown_setting_names_the_nearest(model: nn.Module) -> None:
    known = "block_size, coverage, gamma, input_mask, mask, objective, prob, sites"
    message = f"^unknown setting of hard_patchup 'gama': choose from {known}; did you mean gamma or mask\\?$"
    with pytest.raises(ValueError, match=message):
        create_mixer("hard_patchup", model, gama=0.4)
    with pytest.raises(ValueError, match=message):
        PatchUp(model, gama=0.4)
    with pytest.raises(ValueError, match=r"^unknown setting of none 'gamma': there are none$"):
        create_mixer("none", model, gamma=0.4)
    assert hook_count(model) == 0


@pytest.mark.parametrize("name", [HardPatchUp(), HardPatchUp, None, [HardPatchUp()], nn.Linear(2, 2)])
def test_method_that_is_not_a_name(name: object, model: nn.Module) -> None:
    """A model in the place of the name, too: other calls take it first."""
    with pytest.raises(TypeError, match=r"^a method is given by its name, such as .*, got .*; Mixer\(model, method\)"):
        create_mixer(name, model)  # type: ignore[arg-type]
    assert hook_count(model) == 0


@pytest.mark.parametrize("method", ["hard_patchup", HardPatchUp, None])
def test_method_that_is_only_a_name_or_a_class(method: object, model: nn.Module) -> None:
    with pytest.raises(TypeError, match=r"^method must be a method such as HardPatchUp\(\), got .*create_mixer\(name"):
        Mixer(model, method)  # type: ignore[arg-type]
    assert hook_count(model) == 0


def test_task_whose_mixer_is_only_a_name(model: nn.Module) -> None:
    with pytest.raises(TypeError, match=r"^mixer must be a mixer such as PatchUp\(model\), got 'hard_patchup'$"):
        MixTask(model, nn.CrossEntropyLoss(), mixer="hard_patchup")  # type: ignore[arg-type]
