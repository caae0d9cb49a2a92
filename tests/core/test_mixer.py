"""A mixer in use: one step, replay, exact resume, its switches, detaching."""

import copy
import pickle
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from tests.support.expectations import MakeModel, drawn, hook_count
from timm_patchup import Draw, Method, OneOf, PatchUp, create_mixer
from timm_patchup.errors import UserError
from timm_patchup.methods.cutmix import CutMix, FeatureCutMix
from timm_patchup.methods.patchup import HardPatchUp

# One step


CRITERIA = {
    "default": None,
    "ce": nn.CrossEntropyLoss(),
    "ce weighted": nn.CrossEntropyLoss(weight=torch.arange(1.0, NUM_CLASSES + 1)),
    "smooth": LabelSmoothingCrossEntropy(0.1),
    "bce": BinaryCrossEntropy(0.1),
    "soft": SoftTargetCrossEntropy(),
}


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("prob", [0.0, 1.0])
@pytest.mark.parametrize("site", ["input", "stage1"])
def test_run_is_mix_forward_and_loss(
    site: str, prob: float, criterion: str, make_model: MakeModel, images: Tensor, labels: Tensor
) -> None:
    model = make_model()
    twin = copy.deepcopy(model)
    mix, twin_mix = (PatchUp(each, mode="soft", prob=prob, sites=[site], seed=3) for each in (model, twin))
    for _ in range(3):
        loss, output = mix.run(model, images, labels, CRITERIA[criterion])
        x, target = twin_mix(images, labels)
        twin_output = twin(x)
        twin_loss = twin_mix.loss(twin_output, target, CRITERIA[criterion])
        assert torch.equal(output, twin_output)
        assert torch.equal(loss, twin_loss)
        loss.backward()
        twin_loss.backward()
    assert mix.state_dict() == twin_mix.state_dict() == {"seed": 3, "count": 3}
    for (name, weight), other in zip(model.named_parameters(), twin.parameters()):
        assert torch.equal(weight.grad, other.grad), name  # type: ignore[arg-type]


def test_run_calls_the_wrapped_model(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    wrapped = nn.DataParallel(model)
    called: list[Tensor] = []
    wrapped.register_forward_hook(lambda module, args, output: called.append(output))
    _, output = mix.run(wrapped, images, labels)
    assert called == [output]


TO_THE_LAST_BIT = {
    "ce": nn.CrossEntropyLoss(),
    "ce-smooth": nn.CrossEntropyLoss(label_smoothing=0.1),
    "smooth": LabelSmoothingCrossEntropy(0.1),
    "bce": BinaryCrossEntropy(0.1),
    "bce-threshold": BinaryCrossEntropy(0.1, target_threshold=0.2),
}


@pytest.mark.parametrize("why", ["prob", "switch", "paused", "eval", "erased"])
@pytest.mark.parametrize("name", TO_THE_LAST_BIT)
def test_batch_that_is_not_mixed_has_timms_loss_to_the_last_bit(
    name: str, why: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    """The criterion gets the labels as they came, through mix.loss alone: no task is needed."""
    criterion = copy.deepcopy(TO_THE_LAST_BIT[name])
    asked: list[Tensor] = []
    criterion.register_forward_pre_hook(lambda module, args: asked.append(args[1]))
    if why == "erased":
        mix = create_mixer("cutout", model)
    else:
        mix = PatchUp(model, prob=0.0 if why == "prob" else 1.0, sites=["stage1"])
    mix.mixup_enabled = why != "switch"
    model.train(why != "eval")
    with mix.paused() if why == "paused" else nullcontext():
        x, target = mix(images, labels)
        output = model(x)
        loss = mix.loss(output, target, criterion)
    assert target.shape == (4, NUM_CLASSES)
    assert len(asked) == 1
    assert asked[0] is labels
    assert torch.equal(loss, criterion(output, labels))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("prob", [0.0, 1.0])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_labels_of_any_integer_type_have_the_same_loss(
    criterion: str, prob: float, dtype: torch.dtype, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    mix = PatchUp(model, prob=prob, sites=["input"])
    model.eval()  # so that both passes are the same
    output = model(images)
    model.train()
    losses = []
    for given in (labels, labels.to(dtype)):
        mix.load_state_dict({"seed": 0, "count": 0})
        losses.append(mix.loss(output, mix(images, given)[1], CRITERIA[criterion]))
    assert torch.equal(*losses)


@pytest.mark.parametrize("site", ["input", "stage1"])
@pytest.mark.parametrize("settings", [{"prob": 0.0}, {"mode": "soft"}, {"mask": "sample"}], ids=str)
def test_a_target_is_two_labels_and_a_weight(
    settings: dict[str, Any], site: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    """What a large number of classes can be trained with; only of the target that was returned last."""
    mix = PatchUp(model, **({"prob": 1.0, "sites": [site]} | settings))
    x, target = mix(images, labels.int())
    own, partner, weight = mix.two_labels(target)  # type: ignore[misc]
    assert own.dtype is partner.dtype is torch.int64
    first, second = F.one_hot(own, NUM_CLASSES), F.one_hot(partner, NUM_CLASSES)
    weight = weight.reshape(-1, 1)
    torch.testing.assert_close(weight * first + (1 - weight) * second, target)
    assert mix.two_labels(target.clone()) is None
    model(x)
    mix(images, F.one_hot(labels, NUM_CLASSES).float())
    assert mix.two_labels(target) is None
    assert mix.target is not None
    assert mix.two_labels(mix.target) is None


def test_labels_smoothed_by_the_mixer_stay_smoothed(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=0.0, label_smoothing=0.1)
    x, target = mix(images, labels)
    output = model(x)
    expected = F.cross_entropy(output, labels, label_smoothing=0.1)
    torch.testing.assert_close(mix.loss(output, target, nn.CrossEntropyLoss()), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_soft_targets_of_any_precision_have_a_loss(
    prob: float, dtype: torch.dtype, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    mix = PatchUp(model, prob=prob, sites=["stage1"], objective="l2")
    x, target = mix(images, F.one_hot(labels, NUM_CLASSES).to(dtype))
    output = model(x)
    for name in ("default", "ce", "smooth", "soft"):
        loss = mix.loss(output, target, CRITERIA[name])
        smoothing = 0.1 if name == "smooth" else 0.0
        assert loss.dtype is torch.float32
        torch.testing.assert_close(loss, F.cross_entropy(output, target, label_smoothing=smoothing))


def test_method_can_be_replaced_between_batches(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, target = mix(images, labels)
    mix.loss(model(x), target)
    mix.method = replace(mix.method, prob=0.0)
    for _ in range(5):
        assert mix(images, labels)[0] is images
        assert drawn(mix).site is None
    mix.method = replace(mix.method, prob=1.0, gamma=0.25)
    x, target = mix(images, labels)
    assert drawn(mix).method is mix.method
    assert drawn(mix).site == "stage1"
    mix.loss(model(x), target)


@pytest.mark.parametrize(
    "method",
    [HardPatchUp(sites=("stage2",)), HardPatchUp(), CutMix(), OneOf([HardPatchUp(sites=("stage1",)), CutMix()])],
    ids=repr,
)
def test_a_method_at_other_sites_needs_another_mixer(
    method: Method, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    before = mix.method
    with pytest.raises(UserError, match=r" acts at other sites than .*: call detach\(\) and make a new mixer$"):
        mix.method = method
    with pytest.raises(UserError, match=r"^block_size has 2 values, but there are 1 sites"):
        mix.method = replace(before, block_size=(3, 5))
    assert mix.method is before
    mix.method = FeatureCutMix(sites=("stage1",))
    mix(images, labels)
    assert drawn(mix).site == "stage1"


# Replay and state


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("site", ["input", "stage1"])
def test_a_draw_can_be_replayed(site: str, mode: str, model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, mode=mode, prob=1.0, sites=[site])  # type: ignore[arg-type]
    x, target = mix(images, labels)
    output, draw = model(x), drawn(mix)
    other, _ = mix(images, labels)
    model(other)
    state = mix.state_dict()
    again, target_again = mix(images, labels, draw=draw)
    assert mix.draw is draw
    assert torch.equal(again, x)
    assert torch.equal(target_again, target)
    assert torch.equal(model(again), output)
    assert mix.state_dict() == state


def test_a_resumed_mixer_continues_exactly(make_model: MakeModel, images: Tensor, labels: Tensor) -> None:
    def run(mix: PatchUp, batches: int) -> list[Draw]:
        draws = []
        for _ in range(batches):
            x, _ = mix(images, labels)
            mix.model(x)
            draws.append(drawn(mix))
        return draws

    first = PatchUp(make_model(), mode="soft", prob=0.8, seed=7)
    run(first, 4)
    state = first.state_dict()
    expected = run(first, 12)
    resumed = PatchUp(make_model(), mode="soft", prob=0.8, seed=0)
    resumed.load_state_dict(state)
    for one, same in zip(expected, run(resumed, 12)):
        assert (one.site, one.lam) == (same.site, same.lam)
        assert torch.equal(one.partner, same.partner)
        assert torch.equal(one.kept, same.kept)
        assert (one.changed is None) == (same.changed is None)
        assert one.changed is None or torch.equal(one.changed, same.changed)  # type: ignore[arg-type]
    assert resumed.state_dict() == first.state_dict() == {"seed": 7, "count": 16}
    assert len({draw.lam for draw in expected}) > 2


# Switches


def test_mixup_enabled_switches_mixing_off_and_on(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    mix.mixup_enabled = False
    x, target = mix(images, labels)
    output = model(x)
    assert torch.equal(output, clean(images))
    assert torch.equal(target, F.one_hot(labels, NUM_CLASSES).float())
    assert mix.loss(output, target).item() == pytest.approx(F.cross_entropy(output, labels).item(), abs=1e-6)
    assert mix.state_dict()["count"] == 0
    mix.mixup_enabled = True
    x, _ = mix(images, labels)
    assert not torch.equal(model(x), clean(images))


def test_eval_mode_is_left_alone(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model).eval()
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    model.eval()
    x, target = mix(images, labels)
    output = model(x)
    assert x is images
    assert drawn(mix).site is None
    assert torch.equal(output, clean(images))
    assert torch.equal(target, F.one_hot(labels, NUM_CLASSES).float())
    assert mix.loss(output, target).item() == pytest.approx(F.cross_entropy(output, labels).item(), abs=1e-6)
    assert mix.state_dict()["count"] == 0
    # A draw that is armed waits while the model is evaluated.
    model.train()
    x, target = mix(images, labels)
    model.eval()
    assert torch.equal(model(images), clean(images))
    model.train()
    model(x)
    mix.loss(output, target)


def test_paused_alters_nothing_inside_and_the_draw_waits(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, target = mix(images, labels)
    with mix.paused():
        assert torch.equal(model(images), clean(images))
        with mix.paused():
            assert torch.equal(model(images), clean(images))
        assert torch.equal(model(images), clean(images))
    output = model(x)
    assert not torch.equal(output, clean(images))
    expected = 2 * F.cross_entropy(output, target).item()
    assert mix.loss(output, target).item() == pytest.approx(expected, rel=1e-6)
    # After an error inside, too.
    with pytest.raises(ZeroDivisionError), mix.paused():
        raise ZeroDivisionError
    x, _ = mix(images, labels)
    assert not torch.equal(model(x), clean(images))


def test_mixing_while_paused_leaves_the_batch_as_it_is(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["input", "stage1"])
    for _ in range(6):
        x, _ = mix(images, labels)
        model(x)
        state = mix.state_dict()
        with mix.paused():
            with mix.paused():
                pass
            x, target = mix(images, labels)
            output = model(x)
            assert x is images
            assert drawn(mix).site is None
            assert torch.equal(target, F.one_hot(labels, NUM_CLASSES).float())
            plain = F.cross_entropy(output, labels).item()
            assert mix.loss(output, target).item() == pytest.approx(plain, abs=1e-6)
        assert mix.state_dict() == state
        assert torch.equal(output, clean(images))
        assert torch.equal(model(images), clean(images))  # nothing is armed afterwards either


def test_detach_leaves_nothing_behind(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    names = {name: sorted(vars(module)) for name, module in model.named_modules()}
    assert hook_count(model) == 0
    mix = PatchUp(model, prob=1.0, sites=["stem", "stage1", "stage2"])
    assert hook_count(model) >= 3
    mix(images, labels)  # armed when it is detached
    mix.detach()
    assert hook_count(model) == 0
    assert {name: sorted(vars(module)) for name, module in model.named_modules()} == names
    assert torch.equal(model(images), clean(images))
    for (name, value), (_, before) in zip(model.state_dict().items(), clean.state_dict().items()):
        assert torch.equal(value, before), name
    assert torch.equal(model.eval()(images), clean.eval()(images))
    PatchUp(model)  # a new one fits


def test_probing_a_size_leaves_the_model_as_it_was(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    model.get_submodule("layer1").eval()
    before = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["stem", "stage1", "stage2"])
    hooks = hook_count(model)
    mix(images, labels)
    for (name, value), (_, then) in zip(model.state_dict().items(), before.state_dict().items()):
        assert torch.equal(value, then), name
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert all(p.grad is None for p in model.parameters())
    assert hook_count(model) == hooks


def test_copies_of_the_model_are_not_altered(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, _ = mix(images, labels)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(images), clean(images))
        clean = copy.deepcopy(twin)
    assert not torch.equal(model(x), copy.deepcopy(model)(images))
    PatchUp(copy.deepcopy(model))  # a copy may have another mixer
