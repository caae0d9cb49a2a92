"""Several methods at once: a value like every method, whose members take turns with their own settings and sites."""

import copy
import inspect
import json
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import timm.data
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import timm_patchup
from tests.conftest import NUM_CLASSES, within
from timm_patchup import Draw, Mixer, MixTask, OneOf, create_mixer
from timm_patchup.core.draw import Erase, Mix
from timm_patchup.core.method import DrawContext, SiteMethod, make_method
from timm_patchup.core.one_of import make_methods
from timm_patchup.errors import UserError, WrongType
from timm_patchup.methods.cutmix import CutMix
from timm_patchup.methods.cutout import Cutout
from timm_patchup.methods.manifold_mixup import ManifoldMixup, Mixup
from timm_patchup.methods.patchup import HardPatchUp, SoftPatchUp
from timm_patchup.methods.puzzle_mix import PuzzleMix

from .every_method import batch, last, one_hot, same, step, tiny_net

BOTH = OneOf([HardPatchUp(prob=1.0, sites=("first", "second"), block_size=(1, 3)), CutMix()], weights=[3, 1])  # type: ignore[arg-type]


def mixer(method: OneOf = BOTH, **arguments: Any) -> Mixer:
    return Mixer(tiny_net(), method, num_classes=NUM_CLASSES, **arguments)


# A value


def test_it_is_a_value() -> None:
    assert BOTH.weights == (3.0, 1.0)
    assert OneOf([CutMix(), Mixup()]) == OneOf((CutMix(), Mixup()), weights=(1, 1))
    others = [OneOf([CutMix()]), OneOf([Mixup(), CutMix()]), OneOf([CutMix(), Mixup()], [1, 2])]  # type: ignore[arg-type]
    assert len({OneOf([CutMix(), Mixup()]), *others}) == 4
    kinds = {kind.__name__: kind for kind in (OneOf, HardPatchUp, CutMix)}
    for twin in (eval(repr(BOTH), kinds), pickle.loads(pickle.dumps(BOTH)), copy.deepcopy(BOTH), replace(BOTH)):
        assert twin == BOTH
    with pytest.raises(FrozenInstanceError):
        BOTH.weights = (1.0, 1.0)  # type: ignore[misc]
    stored = json.loads(json.dumps(BOTH.settings()))
    parts = zip(stored["methods"], stored["settings"], strict=True)
    assert OneOf([make_method(name, **own) for name, own in parts], stored["weights"]) == BOTH  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OneOf([]), "methods is empty: give at least one method"),
        (lambda: OneOf([CutMix]), "methods must be a list of methods such as HardPatchUp(), got [<class"),
        (lambda: OneOf(["cutmix"]), "methods must be a list of methods such as HardPatchUp(), got ['cutmix']"),
        (lambda: OneOf(CutMix()), "methods must be a list of methods such as HardPatchUp(), got CutMix("),
        (lambda: OneOf([CutMix(), Mixup()], weights=[1]), "weights has 1 values for 2 methods"),
        (lambda: OneOf([CutMix(), Mixup()], weights=[1, 0]), "weights must be a number above 0, got 0"),
        (lambda: make_methods(["cutmix", "mixup"], weights=[1]), "weights has 1 values for 2 methods"),
        (lambda: make_methods(["cutmix"], weights=[1]), "weights has no effect with one method"),
        (lambda: make_methods([]), "no method is named: give at least one"),
        (lambda: make_methods(["cutmix", "cutmix"]), "mix names a method twice: cutmix, cutmix"),
        (lambda: make_methods(["cutmix", "cutmx"]), "unknown method 'cutmx': choose from "),
        (
            lambda: make_methods(["cutmix", "mixup"], gamma=1),
            "gamma is not a setting of cutmix or mixup; they have alph",
        ),
        (
            lambda: make_methods(["cutmix", "mixup"], mixup=1),
            "settings of mixup must be a mapping of names to values, g",
        ),
        (
            lambda: make_methods(["cutmix", "mixup"], cutout={}),
            "settings of 'cutout', which is not among the methods c",
        ),
        (lambda: make_methods(["cutmix", "mixup"], mixup={"beta": 1}), "unknown setting of mixup 'beta'"),
        (lambda: make_methods(["cutmix", "mixup"], alpha="1"), "alpha must be a number above 0, got '1'"),
    ],
)
def test_a_wrong_call_ends_in_one_line(call: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    (line,) = caught.value.problems
    assert line.startswith(message)


def test_settings_go_to_all_that_have_them_and_own_ones_win() -> None:
    made = make_methods(["hard_patchup", "cutmix"], weights=[2, 1], prob=0.5, gamma=0.3, cutmix={"prob": 0.25})
    assert made == OneOf([HardPatchUp(prob=0.5, gamma=0.3), CutMix(prob=0.25)], [2, 1])  # type: ignore[arg-type]
    assert make_methods(["cutmix"], prob=0.5) == CutMix(prob=0.5), "one method alone draws as it always did"
    mix = create_mixer(["hard_patchup", "cutmix"], tiny_net(), num_classes=NUM_CLASSES, sites=["first"], gamma=0.3)
    assert mix.method == OneOf([HardPatchUp(sites=("first",), gamma=0.3), CutMix()])


# Turns


def test_turns_follow_the_weights_and_every_member_its_own_probability() -> None:
    methods = (CutMix(prob=0.25), HardPatchUp(sites=("second",), prob=0.5), Cutout(prob=1.0))
    mix = mixer(OneOf(methods, (5.0, 2.0, 1.0)))
    turns, altered, trials = dict.fromkeys(methods, 0), dict.fromkeys(methods, 0), 2000
    x, y = batch()
    for _ in range(trials):
        step(mix, x, y)
        draw = last(mix)
        turns[draw.method] += 1  # type: ignore[index]
        altered[draw.method] += draw.site is not None  # type: ignore[index]
        assert draw.site in (None, "second" if draw.method is methods[1] else "input")
    for method, weight in zip(methods, (5, 2, 1)):
        assert within(turns[method], trials, weight / 8)
        assert within(altered[method], turns[method], method.prob)


def test_values_per_site_are_those_of_the_members_own_sites() -> None:
    """The union of the sites has the input of CutMix, the sizes of the blocks count by PatchUp's two sites."""
    seen: dict[str, set[tuple[str, ...]]] = {}

    class Watched(HardPatchUp):
        def change(self, context: DrawContext) -> Any:
            seen.setdefault(context.site, set()).add(context.sites)
            assert context.per_site(self.block_size) == {"second": 1, "first": 3}[context.site]
            return super().change(context)

    watched = Watched(prob=1.0, sites=("second", "first"), block_size=(1, 3))
    mix = mixer(OneOf([CutMix(), watched]))
    assert [site.name for site in mix.sites] == ["input", "second", "first"]
    for _ in range(40):
        step(mix, *batch())
    assert seen == {site: {("second", "first")} for site in ("second", "first")}
    with pytest.raises(
        UserError, match=r"^block_size has 3 values, but there are 2 sites: second, first; give one value"
    ):
        mixer(OneOf([CutMix(), replace(watched, block_size=(1, 3, 5))]))


def test_one_place_may_have_two_names() -> None:
    model = timm.create_model("test_resnet", num_classes=10).train()
    members = [ManifoldMixup(sites=("stage1",)), HardPatchUp(sites=("layer1",), prob=1.0)]
    mix = Mixer(model, OneOf(members))
    for _ in range(12):
        x, target = mix(torch.randn(2, 3, 32, 32), torch.tensor([1, 2]))
        mix.loss(model(x), target).backward()
        assert last(mix).site == ("stage1" if last(mix).method is members[0] else "layer1")


def test_a_member_alone_draws_what_it_draws_in_turn() -> None:
    """After the turn is drawn, the generator serves the member as it would serve it alone."""

    class Turn(OneOf):
        def choose(self, generator: torch.Generator) -> Any:
            torch.rand((), dtype=torch.float64, generator=generator)
            return self.methods[0]

    class Burns(HardPatchUp):
        def choose(self, generator: torch.Generator) -> Any:
            torch.rand((), dtype=torch.float64, generator=generator)
            return self

    settings: Any = {"sites": ("first", "second"), "block_size": 3}
    pair = mixer(Turn([HardPatchUp(**settings), CutMix()])), Mixer(tiny_net(), Burns(**settings), num_classes=10)  # type: ignore[arg-type]
    for seed in range(12):
        for mix in pair:
            step(mix, *batch(seed=seed))
        assert same(last(pair[0]), last(pair[1]))


class OwnLoss(nn.Module):
    """Not affine in its target: L1 and L2 differ."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.softmax(1) - target).pow(2).sum(1).mean()


@pytest.mark.parametrize("criterion", [None, OwnLoss()], ids=["cross-entropy", "own"])
def test_a_batch_has_the_objective_of_the_method_whose_turn_it_was(criterion: nn.Module | None) -> None:
    members = (HardPatchUp(prob=1.0, sites=("first",)), SoftPatchUp(sites=("second",), objective="l1"), CutMix())
    mix = mixer(OneOf(members))
    loss_of = criterion or F.cross_entropy
    seen = set()
    for seed in range(40):
        x, y = batch(seed=seed)
        _, target, output = step(mix, x, y)
        draw, own = last(mix), one_hot(y)
        other = draw.lam * own + (1.0 - draw.lam) * own[draw.partner]
        first = draw.kept * loss_of(output, own) + (1.0 - draw.kept) * loss_of(output, other)
        second = loss_of(output, draw.kept * own + (1.0 - draw.kept) * other)
        expected = {members[0]: first + second, members[1]: first, members[2]: second}[draw.method]  # type: ignore[index]
        torch.testing.assert_close(mix.loss(output, target, criterion), expected)
        seen.add(draw.method)
    assert seen == set(members)


def test_a_replayed_draw_keeps_its_objective() -> None:
    mix = mixer()
    x, y = batch()
    draws: dict[Any, Draw] = {}
    while len(draws) < 2:
        step(mix, x, y)
        draws[last(mix).method] = last(mix)
    for draw in draws.values():
        _, target, output = step(mix, x, y, draw=draw)
        times = 2.0 if isinstance(draw.method, HardPatchUp) else 1.0
        torch.testing.assert_close(mix.loss(output, target), times * F.cross_entropy(output, target))


def test_a_draw_made_by_hand_names_its_method_if_the_objectives_differ() -> None:
    x, y = batch()
    draw = Draw("input", torch.arange(5, -1, -1), Mix(torch.ones(1, 1, 1, 1) > 0))
    mix = mixer()
    with pytest.raises(
        UserError, match=r"^the methods differ in their objective, and this draw does not state its method"
    ):
        mix(x, y, draw=draw)
    _, target, output = step(mix, x, y, draw=replace(draw, method=CutMix()))
    torch.testing.assert_close(mix.loss(output, target), F.cross_entropy(output, target))
    erasing = Draw("input", torch.arange(6), Erase(torch.ones(1, 1, 1, 1) > 0, torch.ones(())))
    mix(x, y, draw=erasing)  # has the loss of its targets, whichever method acts
    alike = mixer(OneOf([CutMix(), Mixup()]))
    _, target, output = step(alike, x, y, draw=draw)
    torch.testing.assert_close(alike.loss(output, target), F.cross_entropy(output, target))


# timm


def test_register_takes_several() -> None:
    timm_patchup.register(["hard_patchup", "cutmix"], weights=[2, 1], gamma=0.3, cutmix={"prob": 0.5}, seed=3)
    try:
        model = timm.create_model("test_resnet", num_classes=10)
        task = timm.task.ClassificationTask(model, nn.CrossEntropyLoss(), verbose=False)
        assert isinstance(task, MixTask)
        assert task.mixer.method == OneOf([HardPatchUp(gamma=0.3), CutMix(prob=0.5)], [2, 1])  # type: ignore[arg-type]
        task(torch.randn(2, 3, 32, 32), torch.tensor([0, 1]))["loss"].backward()
        student = timm.create_model("test_resnet", num_classes=10)
        with pytest.raises(ValueError, match="hard_patchup"):  # inside the student alone; cutmix would do
            timm.task.LogitDistillationTask(student, model)
    finally:
        timm_patchup.unregister()


@pytest.mark.parametrize("site", ["input", "first"])
def test_timms_mixup_before_the_mixer(site: str) -> None:
    """Both mix: first timm the images and labels, then the mixer what timm made of them."""
    mix = Mixer(tiny_net(), ManifoldMixup(sites=(site,)), num_classes=NUM_CLASSES)
    theirs = timm.data.Mixup(mixup_alpha=1.0, label_smoothing=0.0, num_classes=NUM_CLASSES)
    x, y = batch()
    images, labels = theirs(x.clone(), y)
    mixed, target = mix(images, labels)
    output = mix.model(mixed)
    draw = last(mix)
    torch.testing.assert_close(target, draw.lam * labels + (1.0 - draw.lam) * labels[draw.partner])
    torch.testing.assert_close(mix.loss(output, target), F.cross_entropy(output, target))
    if site == "input":
        torch.testing.assert_close(mixed, draw.lam * images + (1.0 - draw.lam) * images[draw.partner])


MIXUPS = [{}, *([{"multi_label": True}] if "multi_label" in inspect.signature(timm.data.Mixup).parameters else [])]


@pytest.mark.parametrize("options", MIXUPS, ids=str)
def test_timms_mixup_after_the_mixer_is_refused_with_the_reason(options: dict[str, Any]) -> None:
    mix = Mixer(tiny_net(), ManifoldMixup(sites=("first",)), num_classes=NUM_CLASSES)
    # Half of each: timm's lam is near 1 now and then, and then nothing is mixed.
    theirs = timm.data.Mixup(mixup_alpha=1000.0, label_smoothing=0.0, num_classes=NUM_CLASSES, **options)
    x, y = batch()
    images, labels = theirs(*(part.clone() for part in mix(x, y)))
    output = mix.model(images)
    with pytest.raises(
        ValueError, match=r"is not the one that mix\(x, target\) returned.* timm's Mixup before the mix"
    ):
        mix.loss(output, labels)


def test_a_returned_target_in_another_dtype_is_the_same() -> None:
    mix = Mixer(tiny_net(), ManifoldMixup(sites=("first",)), num_classes=NUM_CLASSES)
    _, target, output = step(mix, *batch())
    torch.testing.assert_close(
        mix.loss(output, target.bfloat16().float()), mix.loss(output, target), rtol=0.02, atol=0.02
    )


def test_methods_without_hashable_settings_take_turns() -> None:
    from dataclasses import dataclass, field

    @dataclass(frozen=True, kw_only=True)
    class Own(SiteMethod):
        table: dict[str, int] = field(default_factory=dict)

        def change(self, context: DrawContext) -> Mix:
            return Mix(context.everywhere())

    mix = mixer(OneOf([Own(sites=("first",)), CutMix()]))
    for _ in range(8):
        step(mix, *batch())


def test_wrong_type_is_a_type_error() -> None:
    with pytest.raises(WrongType):
        OneOf("cutmix")  # type: ignore[arg-type]


def test_a_draw_made_by_hand_names_its_method_if_one_adds_to_its_loss() -> None:
    x, y = batch()
    draw = Draw("input", torch.arange(5, -1, -1), Mix(torch.ones(1, 1, 1, 1) > 0))
    mix = mixer(OneOf([CutMix(), PuzzleMix(clean_lam=0.5)]))
    with pytest.raises(UserError, match="adds_loss"):
        mix(x, y, draw=draw)
    _, target, output = step(mix, x, y, draw=replace(draw, method=CutMix()))
    torch.testing.assert_close(mix.loss(output, target), F.cross_entropy(output, target))
