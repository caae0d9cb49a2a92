"""What a user can get wrong ends in one clear error that names the argument, what was given and what is allowed.

Afterwards the model and the mixer are fit for use: nothing stays hooked, and nothing runs silently unregularised.
"""

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import pytest
import timm
import torch
from timm.loss import JsdCrossEntropy, LabelSmoothingCrossEntropy
from torch import Tensor, nn

from timm_patchup import Draw, MixTask, PatchUp, create_mixer

NAN = float("nan")


def hook_count(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def plain_net() -> nn.Module:
    """A network that says nothing of its stages and classes."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)).train()


# Settings


@pytest.mark.parametrize("name", ["gamma", "prob"])
@pytest.mark.parametrize("value", [-0.1, 1.1, NAN, float("inf"), -float("inf")])
def test_share_outside_its_range(name: str, value: float, model: nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must lie in \[0, 1\], got {re.escape(repr(value))}$"):
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
    with pytest.raises(ValueError, match=f"^block_size must be at least 1, got {wrong}$"):
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
    message = f"^block_size has {len(value)} values, the sites are 4: input, stem, stage1, stage2$"
    with pytest.raises(ValueError, match=message):
        PatchUp(model, block_size=value)
    assert hook_count(model) == 0


@pytest.mark.parametrize("value", [0, 0.0, -1.0, NAN, float("inf")])
def test_alpha_not_above_zero(value: float, model: nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"^alpha must lie in \(0, inf\), got {re.escape(repr(value))}$"):
        PatchUp(model, alpha=value)


@pytest.mark.parametrize("value", [-0.1, 1.0, NAN])
def test_label_smoothing_outside_its_range(value: float, model: nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"^label_smoothing must lie in \[0, 1\), got {re.escape(repr(value))}$"):
        PatchUp(model, label_smoothing=value)


@pytest.mark.parametrize(
    ("name", "value", "choices", "near"),
    [
        ("mode", "hrad", "hard, soft", "hard"),
        ("mask", "samples", "batch, sample", "sample"),
        ("input_mask", "block", "rectangle, blocks", "blocks"),
        ("objective", "papr", "paper, l1, l2", "paper"),
    ],
)
def test_unknown_choice_names_the_nearest(name: str, value: str, choices: str, near: str, model: nn.Module) -> None:
    message = f"^unknown {name} '{value}': choose from {choices}; did you mean {near}\\?$"
    with pytest.raises(ValueError, match=message):
        PatchUp(model, **{name: value})  # type: ignore[arg-type]
    assert hook_count(model) == 0


def test_unknown_method_names_the_nearest(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"unknown method 'hard_pathcup': choose from .*did you mean hard_patchup"):
        create_mixer("hard_pathcup", model)


def test_unknown_setting_names_the_nearest(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"unknown setting of hard_patchup 'gama': .*did you mean gamma"):
        create_mixer("hard_patchup", model, gama=0.4)
    with pytest.raises(ValueError, match=r"unknown setting of none 'gamma': choose from "):
        create_mixer("none", model, gamma=0.4)
    assert hook_count(model) == 0


# Sites and models


def test_unknown_site_names_the_nearest(model: nn.Module) -> None:
    message = r"unknown site 'stage9': .*input, stem, stage1, stage2, stage3, stage4.*nearest: .*stage4"
    with pytest.raises(ValueError, match=message):
        PatchUp(model, sites=["stem", "stage9"])
    assert hook_count(model) == 0


@pytest.mark.parametrize(
    ("sites", "error", "message"),
    [
        ("stem", TypeError, "^sites must be a list of names such as .*, got 'stem'$"),
        ([1], TypeError, r"^sites must be a list of names such as .*, got \[1\]$"),
        ([], ValueError, "^sites is empty: give at least one name, or None for the paper's set$"),
        (["stem", "stem"], ValueError, "^sites name one place more than once: stem, stem$"),
        (["stem", "act1"], ValueError, "^sites name one place more than once: stem, act1$"),
    ],
)
def test_sites_that_are_no_list_of_places(
    sites: object, error: type[Exception], message: str, model: nn.Module
) -> None:
    with pytest.raises(error, match=message):
        PatchUp(model, sites=sites)  # type: ignore[arg-type]
    assert hook_count(model) == 0


def test_model_without_sites() -> None:
    with pytest.raises(ValueError, match=r"^Sequential has no feature_info.*sites=None.*Give.*sites=\['input'\]"):
        PatchUp(plain_net())


def test_site_that_gives_no_map(make_model: Callable[..., nn.Module], labels: Tensor) -> None:
    model = make_model("test_vit", img_size=64)
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    with pytest.raises(ValueError, match=r"site 'stage1' \(module 'blocks.0' of .*\) gives tokens \(B, N, C\)"):
        mix(torch.randn(4, 3, 64, 64), labels)


def assert_refused(wrapped: nn.Module, message: str, **settings: object) -> None:
    with pytest.raises(TypeError, match=message):
        PatchUp(wrapped, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("sites", [None, ["input"]])
def test_model_in_data_parallel(sites: list[str] | None, model: nn.Module) -> None:
    assert_refused(nn.DataParallel(model), "^model is wrapped in DataParallel: give model.module", sites=sites)
    assert hook_count(model) == 0


@pytest.mark.parametrize("sites", [None, ["input"]])
def test_compiled_model(sites: list[str] | None, model: nn.Module) -> None:
    wrapped = cast(nn.Module, torch.compile(model, backend="eager"))
    assert_refused(wrapped, "^model is compiled: .*Give the plain model", sites=sites)
    model.compile(backend="eager")
    assert_refused(model, "^model is compiled: .*Give the plain model", sites=sites)
    assert hook_count(model) == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("sites", [None, ["input"]])
def test_scripted_model(sites: list[str] | None, make_model: Callable[..., nn.Module]) -> None:
    scripted = torch.jit.script(make_model(scriptable=True))
    assert_refused(scripted, "^model is a RecursiveScriptModule: hooks do not run in TorchScript", sites=sites)
    traced = torch.jit.trace(plain_net(), torch.randn(1, 3, 8, 8))
    assert_refused(traced, "^model is a TopLevelTracedModule: hooks do not run in TorchScript", sites=sites)


@pytest.mark.parametrize("value", [None, "resnet18", 3])
def test_model_that_is_no_module(value: object) -> None:
    with pytest.raises(TypeError, match=f"^model must be an nn.Module, got {type(value).__name__}$"):
        PatchUp(value)  # type: ignore[arg-type]


def test_two_mixers_on_one_model(model: nn.Module) -> None:
    first = PatchUp(model)
    hooks = hook_count(model)
    with pytest.raises(ValueError, match=r"^the model has a mixer already: call detach\(\) on that one first$"):
        PatchUp(model, mode="soft")
    assert hook_count(model) == hooks
    first.detach()
    PatchUp(model, mode="soft")


def test_detached_mixer(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model)
    mix.detach()
    with pytest.raises(RuntimeError, match=r"^this mixer is detached from its model: make a new one$"):
        mix(images, labels)


# Batches and targets


@pytest.mark.parametrize(
    "x",
    [torch.randn(3, 64, 64), torch.randn(4, 2, 3, 8, 8), torch.zeros(4, 3, 8, 8, dtype=torch.uint8), [[1.0]], None],
    ids=["rank 3", "rank 5", "uint8", "list", "None"],
)
def test_images_of_wrong_rank_or_type(x: object, model: nn.Module, labels: Tensor) -> None:
    given = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
    message = rf"^x must be a floating point tensor \(B, C, H, W\), got {re.escape(given)}$"
    with pytest.raises(TypeError, match=message):
        PatchUp(model)(x, labels)  # type: ignore[arg-type]


def test_empty_batch(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    message = r"^x is an empty batch of shape \(0, 3, 64, 48\): mixing needs at least one sample$"
    with pytest.raises(ValueError, match=message):
        PatchUp(model)(images[:0], labels[:0])


@pytest.mark.parametrize("wrong", [-1, 10, 1000])
def test_label_out_of_range(wrong: int, model: nn.Module, images: Tensor) -> None:
    with pytest.raises(ValueError, match=f"^target holds the label {wrong}, allowed are 0 to .*9$"):
        PatchUp(model)(images, torch.tensor([0, 1, wrong, 9]))
    with pytest.raises(ValueError, match=r"^target holds the label 3, allowed are 0 to .*2$"):
        PatchUp(copy.deepcopy(model), num_classes=3)(images, torch.tensor([0, 1, 2, 3]))


def test_class_indices_without_their_number(images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(plain_net(), sites=["input"])
    with pytest.raises(ValueError, match=r"^class indices need num_classes: give it to the mixer"):
        mix(images, labels)
    mix(images, torch.rand(4, 10))


@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("soft", [False, True])
def test_target_of_wrong_length(rows: int, soft: bool, model: nn.Module, images: Tensor) -> None:
    target = torch.rand(rows, 10) if soft else torch.zeros(rows, dtype=torch.long)
    with pytest.raises(ValueError, match=f"^target has {rows} rows, x has 4 samples$"):
        PatchUp(model)(images, target)


@pytest.mark.parametrize("columns", [1, 9, 11])
def test_target_of_wrong_width(columns: int, model: nn.Module, images: Tensor) -> None:
    with pytest.raises(ValueError, match=f"^target has {columns} columns, num_classes is 10$"):
        PatchUp(model)(images, torch.rand(4, columns))


@pytest.mark.parametrize(
    "target",
    [torch.rand(4), torch.zeros(4, 10, dtype=torch.long), torch.tensor(3), torch.rand(4, 10, 1), [3, 1, 4, 9], 3],
    ids=["float (B,)", "int (B, K)", "0-d", "3-d", "list", "int"],
)
def test_target_of_wrong_rank_or_type(target: object, model: nn.Module, images: Tensor) -> None:
    given = f"{target.dtype} {tuple(target.shape)}" if isinstance(target, Tensor) else type(target).__name__
    message = r"^target must be int \(B,\) class indices or float \(B, K\) distributions, got "
    with pytest.raises(TypeError, match=message + re.escape(given) + "$"):
        PatchUp(model)(images, target)  # type: ignore[arg-type]


# Draws that are replayed


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lam": NAN}, ValueError, r"^draw.lam must lie in \[0, 1\], got nan$"),
        ({"lam": -0.5}, ValueError, r"^draw.lam must lie in \[0, 1\], got -0.5$"),
        ({"lam": "0.5"}, TypeError, r"^draw.lam must be a number in \[0, 1\], got '0.5'$"),
        ({"partner": torch.tensor([0, 0, 1, 2])}, ValueError, r"^draw.partner must be a permutation .*\[0, 0, 1, 2\]$"),
        ({"partner": torch.tensor([1, 2, 3, 4])}, ValueError, r"^draw.partner must be a permutation .*\[1, 2, 3, 4\]$"),
        (
            {"partner": torch.tensor([-1, 0, 1, 2])},
            ValueError,
            r"^draw.partner must be a permutation .*\[-1, 0, 1, 2\]$",
        ),
        ({"partner": torch.arange(3)}, ValueError, r"^draw.partner has shape \(3,\), the batch needs \(4,\)$"),
        ({"kept": torch.tensor(NAN)}, ValueError, r"^draw.kept must lie in \[0, 1\], got nan$"),
        ({"kept": torch.tensor(1.5)}, ValueError, r"^draw.kept must lie in \[0, 1\], got 1.5$"),
        ({"changed": None}, ValueError, "^draw.changed must be a bool mask when site is 'stage1', got None$"),
        ({"changed": torch.ones(3, 32, 16, 12, dtype=torch.bool)}, ValueError, "^draw.changed holds 3 masks.* 1 or 4$"),
        ({"site": "stage"}, ValueError, "^unknown draw.site 'stage': choose from stage1; did you mean stage1"),
    ],
    ids=[
        "nan lam",
        "lam below 0",
        "text lam",
        "twice",
        "from 1",
        "negative",
        "too short",
        "nan kept",
        "kept above 1",
        "no mask",
        "three masks",
        "unknown site",
    ],
)
def test_replayed_draw_that_contradicts_itself(
    change: dict[str, object], error: type[Exception], message: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, _ = mix(images, labels)
    model(x)
    assert mix.draw is not None
    draw = mix.draw
    with pytest.raises(error, match=message):
        mix(images, labels, draw=replace(draw, **change))  # type: ignore[arg-type]
    x, target = mix(images, labels, draw=draw)  # fit for use afterwards
    mix.loss(model(x), target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partner": torch.tensor([1.0, 2.0, 3.0, 0.0])}, "draw.partner"),
        ({"partner": [1, 2, 3, 0]}, "draw.partner"),
        ({"kept": torch.rand(3)}, "draw.kept"),
        ({"kept": 0.5}, "draw.kept"),
        ({"changed": torch.ones(1, 32, 16, 12)}, r"^draw.changed must be a bool mask .*float32[^\n]*$"),
        ({"site": None}, "draw"),
    ],
    ids=["float partner", "list partner", "kept too short", "number kept", "float mask", "mask without site"],
)
def test_replayed_draw_of_wrong_types_names_the_field(
    change: dict[str, object], message: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    # The last: a mask without a site would mix the targets and leave every feature as it is.
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    draw = Draw("stage1", torch.tensor([1, 2, 3, 0]), 0.0, torch.ones(1, 32, 16, 12) > 0, torch.tensor(0.0))
    with pytest.raises((ValueError, TypeError), match=message):
        mix(images, labels, draw=replace(draw, **change))  # type: ignore[arg-type]


# Draws that were not applied, or to something else


NEVER = r"^the draw at site 'stage1' was never applied: no training forward pass of the model reached that site"


def assert_works(mix: PatchUp, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(mix.model)
    x, target = mix(images, labels)
    output = mix.model(x)
    assert not torch.equal(output, clean(images))
    torch.testing.assert_close(mix.loss(output, target), 2 * nn.functional.cross_entropy(output, target))


def test_draw_that_nothing_applied_raises_at_the_loss(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, target = mix(images, labels)
    output = copy.deepcopy(model)(x)  # a copy: not the model that is mixed
    with pytest.raises(RuntimeError, match=NEVER):
        mix.loss(output, target)
    assert_works(mix, images, labels)


def test_draw_that_nothing_applied_raises_at_the_next_batch(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, _ = mix(images, labels)
    model.eval()
    model(x)
    model.train()
    with pytest.raises(RuntimeError, match=NEVER):
        mix(images, labels)
    assert_works(mix, images, labels)


@pytest.mark.parametrize("at", ["loss", "mix"])
def test_draw_that_nothing_applied_raises_under_paused(
    at: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, target = mix(images, labels)
    # The message names the site, and the draw that was given up is not armed again when the pause ends.
    with mix.paused():
        output = model(x)
        call = partial(mix.loss, output, target) if at == "loss" else partial(mix, images, labels)
        with pytest.raises(RuntimeError, match=NEVER):
            call()
    assert torch.equal(model(images), clean(images))
    assert_works(mix, images, labels)


def test_draw_that_nothing_applied_raises_when_compiled(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    torch._dynamo.reset()
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    compiled = torch.compile(model, backend="eager")
    x, target = mix(images, labels)
    mix.loss(compiled(x), target)  # the graph with this site is known from here on
    x, target = mix(images, labels)
    with mix.paused():
        output = compiled(x)
    with pytest.raises(RuntimeError, match=NEVER):
        mix.loss(output, target)


def test_batch_of_another_size_than_drawn(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, _ = mix(images, labels)
    features = r"^features at site 'stage1' have shape \({}\), but the draw was made for a batch of 4 with "
    with pytest.raises(RuntimeError, match=features.format("3, 32, 16, 12") + r".*mix\.paused\(\)"):
        model(x[:3])
    with pytest.raises(RuntimeError, match=features.format("4, 32, 8, 12") + r".*mix\.paused\(\)"):
        model(x[:, :, :32])
    model(x)
    assert_works(mix, images, labels)


# Losses and tasks


def test_task_with_the_mixer_of_another_model(model: nn.Module) -> None:
    mix = PatchUp(copy.deepcopy(model))
    with pytest.raises(ValueError, match=r"^mixer was made for another model: make it for the model given to MixTask$"):
        MixTask(model, nn.CrossEntropyLoss(), mixer=mix)


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(label_smoothing=0.1), LabelSmoothingCrossEntropy(0.1)])
def test_task_that_smooths_twice(criterion: nn.Module, model: nn.Module) -> None:
    message = r"^label smoothing is set twice, in the mixer \(0.2\) and in the criterion \(0.1\): leave one at 0$"
    with pytest.raises(ValueError, match=message):
        MixTask(model, criterion, mixer=PatchUp(model, label_smoothing=0.2))


@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_jsd_cannot_be_mixed(prob: float, model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=prob, sites=["input"])
    x, target = mix(images, labels)
    with pytest.raises(
        TypeError, match=r"^JsdCrossEntropy compares splits of one batch .* cannot be used with mixing$"
    ):
        mix.loss(model(x), target, JsdCrossEntropy(num_splits=2))


@pytest.mark.parametrize("objective", ["paper", "l1"])
def test_mask_for_each_sample_with_a_mean_that_is_not_affine(
    objective: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    def mean(output: Tensor, target: Tensor) -> Tensor:
        return (output.softmax(1) - target).square().mean()

    mix = PatchUp(model, prob=1.0, sites=["stage1"], mask="sample", objective=objective)  # type: ignore[arg-type]
    x, target = mix(images, labels)
    output = model(x)
    message = "^a mask for each sample .*reduction='none', or objective='l2', or mask='batch'$"
    with pytest.raises(ValueError, match=message):
        mix.loss(output, target, mean)
    assert torch.isfinite(mix.loss(output, target))


def test_model_without_maps_fails_at_its_first_batch_and_is_free_again() -> None:
    model = timm.create_model("test_vit", num_classes=10)
    x, y = torch.randn(2, 3, 160, 160), torch.tensor([1, 2])
    for seed in range(8):  # whatever is drawn first, also nothing or the input
        mix = PatchUp(model, prob=0.5, seed=seed)
        with pytest.raises(
            ValueError, match=r"gives tokens \(B, N, C\).*sites=\['input', 'stem'\], which can be mixed"
        ):
            mix(x, y)
    mix = PatchUp(model, prob=1.0, sites=["input"])
    mixed, target = mix(x, y)
    mix.loss(model(mixed), target).backward()
