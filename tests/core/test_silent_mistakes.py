"""What would train on other features, targets or losses than the caller believes raises instead."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import timm_patchup
from tests.conftest import NUM_CLASSES
from tests.support.expectations import MakeModel, hook_count, tiny
from timm_patchup import Mixer, PatchUp, create_mixer
from timm_patchup.errors import UserError

from .steps import SmallNet

# Targets


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf"), -0.5])
@pytest.mark.parametrize("site", ["input", "stage1"])
@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_soft_targets_that_are_no_distributions(
    prob: float, site: str, wrong: float, model: nn.Module, images: Tensor
) -> None:
    mix = PatchUp(model, prob=prob, sites=[site])
    for count in range(3):  # not in the first batch only
        target = torch.rand(4, NUM_CLASSES)
        target[2, 5] = wrong
        with pytest.raises(ValueError, match=r"^target has values from .* finite"):
            mix(images, target)
        x, mixed = mix(images, torch.rand(4, NUM_CLASSES))
        assert mix.loss(model(x), mixed).isfinite(), count


@pytest.mark.parametrize("kind", ["nested", "jagged", "meta", "sparse"])
@pytest.mark.parametrize("which", ["x", "target"])
def test_tensors_without_a_value_at_every_place(
    which: str, kind: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    def odd(value: Tensor) -> Any:
        if kind == "meta":
            return value.to("meta")
        if kind == "sparse":
            return value.to_sparse()
        layout = torch.jagged if kind == "jagged" else torch.strided
        return torch.nested.as_nested_tensor(list(value), layout=layout)

    target = F.one_hot(labels, NUM_CLASSES).float()
    mix = PatchUp(model)
    with pytest.raises(TypeError, match=f"^{which} is a {'nested' if kind == 'jagged' else kind} tensor"):
        mix(odd(images), target) if which == "x" else mix(images, odd(target))
    mix(images, target)


# Losses


@pytest.mark.parametrize("prob", [0.0, 1.0])
@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(reduction="none"),
        nn.BCEWithLogitsLoss(reduction="none"),
        lambda output, target: (output - target).square(),
    ],
    ids=["ce", "bce", "per class"],
)
def test_criterion_that_does_not_average(
    criterion: Callable[[Tensor, Tensor], Tensor], prob: float, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    mix = PatchUp(model, prob=prob, sites=["stage1"])
    x, target = mix(images, labels)
    output = model(x)
    with pytest.raises(UserError, match="reduction='mean'"):
        mix.loss(output, target, criterion)
    assert mix.loss(output, target).isfinite()
    model.eval()
    with pytest.raises(UserError, match="reduction='mean'"):
        mix.loss(model(images), F.one_hot(labels.flip(0), NUM_CLASSES).float(), criterion)


@pytest.mark.parametrize("mask", ["batch", "sample"])
def test_losses_per_sample_are_averaged(mask: str, model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """A criterion that is not known to be affine needs them if a mask per sample was drawn."""

    def squares(output: Tensor, target: Tensor) -> Tensor:
        return (output.softmax(1) - target).square().sum(1)

    mix = PatchUp(model, prob=1.0, sites=["stage1"], mask=mask)
    x, target = mix(images, labels)
    output = model(x)
    draw, own = mix.draw, F.one_hot(labels, NUM_CLASSES).float()
    assert draw is not None
    kept = draw.kept.expand(4)
    expected = kept * squares(output, own) + (1 - kept) * squares(output, own[draw.partner]) + squares(output, target)
    loss = mix.loss(output, target, squares)
    torch.testing.assert_close(loss, expected.mean())
    loss.backward()


def test_loss_of_a_training_batch_that_was_never_mixed(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0)
    output = model(images)
    with pytest.raises(UserError, match=r"never mixed: call x, target = mix\(x, target\)"):
        mix.loss(output, labels)
    plain = F.cross_entropy(output, labels)
    with mix.paused():
        assert torch.equal(mix.loss(output, labels), plain)
    mix.mixup_enabled = False
    assert torch.equal(mix.loss(output, labels), plain)
    mix.mixup_enabled = True
    model.eval()
    assert torch.equal(mix.loss(output, labels), plain)


# Passes


class Twice(nn.Module):
    """Runs its stage again in training, as nets with stochastic or recurrent depth may."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage(x)
        return (self.stage(x) if self.training else x).mean((2, 3))


def test_stage_that_runs_twice_in_training_and_once_in_eval_mode() -> None:
    model = Twice()
    mix = PatchUp(model, prob=1.0, sites=["stage"], block_size=3, num_classes=3)
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    for _ in range(2):
        mixed, _ = mix(x, y)
        with pytest.raises(RuntimeError, match="'stage' runs more than once in a training forward pass"):
            model(mixed)
    with mix.paused():
        model(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_passes_that_repeat_a_batch_are_no_stage_that_runs_twice(
    reentrant: bool, images: Tensor, labels: Tensor
) -> None:
    """Gradient checkpointing, SAM, a call of a part of the model, a pass that raised."""
    model = SmallNet()
    mix = PatchUp(model, prob=1.0, sites=["conv"], num_classes=NUM_CLASSES)
    run = partial(torch.utils.checkpoint.checkpoint, use_reentrant=reentrant)
    images.requires_grad_()
    for _ in range(3):
        x, target = mix(images, labels)
        for _ in range(2):
            output = run(model, x)
            mix.loss(output, target).backward()
        model.conv(x)
        model.conv(x)


def test_images_of_another_batch_under_this_draw(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    others = torch.randn_like(images)
    x, target = mix(images, labels)
    mix.loss(model(x), target)
    x, target = mix(others, labels)
    for call in (lambda: model(images), lambda: nn.Sequential(model)(images)):
        with pytest.raises(RuntimeError, match=r"images of another batch .* mix\(x, target\) before every"):
            call()
    with mix.paused():
        model(images)
    for same in (x, others, others.clone(), others + 0.1):  # SAM, adversarial training: nothing tells that it is wrong
        mix.loss(model(same), target)
    # The same tensor given again is the next batch.
    for _ in range(2):
        x, target = mix(images, labels)
        mix.loss(model(x), target)


def test_a_mixer_in_use_can_be_copied(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    mix(images, labels)
    for twin in (copy.deepcopy(mix), pickle.loads(pickle.dumps(mix))):
        assert twin.state_dict() == mix.state_dict()


def test_a_model_of_a_compiled_class_whose_hook_is_gone(make_model: MakeModel, images: Tensor, labels: Tensor) -> None:
    """Models of a class share graphs, and with them the note that a site was traced."""
    torch._dynamo.reset()
    model = make_model()
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    compiled = torch.compile(model, backend="eager")
    x, target = mix(images, labels)
    mix.loss(compiled(x), target)
    model.layer1 = copy.deepcopy(model.layer1)  # after it was compiled with the hook
    x, target = mix(images, labels)
    with pytest.raises(RuntimeError, match=r"'stage1' was never applied: its module was replaced"):
        mix.loss(compiled(x), target)
    second = make_model()
    mix = PatchUp(second, prob=1.0, sites=["stage1"])
    second.layer1 = copy.deepcopy(second.layer1)
    for run in (second, torch.compile(second, backend="eager")):
        x, target = mix(images, labels)
        with pytest.raises(RuntimeError, match=r"'stage1' was never applied: its module was replaced"):
            mix.loss(run(x), target)  # type: ignore[operator]


def test_a_model_of_a_compiled_class_with_its_hook_in_an_adapter(
    make_model: MakeModel, images: Tensor, labels: Tensor
) -> None:
    """As peft wraps a module: it still runs."""

    class Adapter(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base = base

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) * 1.0

    torch._dynamo.reset()
    for _ in range(2):
        model = make_model()
        mix = PatchUp(model, prob=1.0, sites=["stage1"])
        model.layer1 = Adapter(model.layer1)
        compiled = torch.compile(model, backend="eager")
        for _ in range(2):
            x, target = mix(images, labels)
            mix.loss(compiled(x), target)


# Graphs that are stored


@pytest.mark.parametrize("strict", [False, True] if hasattr(torch.compiler, "is_exporting") else [False])
def test_export_in_training(strict: bool, images: Tensor, labels: Tensor) -> None:
    model = SmallNet()
    mix = PatchUp(model, prob=1.0, sites=["conv"], num_classes=NUM_CLASSES)
    mix(images, labels)
    with pytest.raises(Exception, match=r"torch.export would keep the mask.*model.eval\(\)"):
        torch.export.export(model, (images,), strict=strict)
    program = torch.export.export(model.eval(), (images,), strict=strict)
    torch.testing.assert_close(program.module()(images), model(images))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_with_hooks_on(images: Tensor, labels: Tensor) -> None:
    model = SmallNet()
    mix = PatchUp(model, prob=1.0, sites=["conv"], num_classes=NUM_CLASSES)
    mix(images, labels)
    with pytest.raises(RuntimeError, match=r"torch.jit.trace would keep the mask.*model.eval\(\)"):
        torch.jit.trace(model, images)
    for scripted in (model, model.conv):
        with pytest.raises(AttributeError, match=r"detach it before, with mix.detach\(\)"):
            torch.jit.script(scripted)
    traced = torch.jit.trace(model.eval(), images)
    torch.testing.assert_close(traced(images), model(images))
    mix.detach()
    torch.testing.assert_close(torch.jit.script(model)(images), model(images))


# A mixer that nobody kept


@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel, partial(torch.compile, backend="eager")])
def test_detach_takes_the_model(wrap: Any, model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stem", "stage1"])
    mix(images, labels)
    with pytest.raises(ValueError, match=r"already has a mixer.*timm_patchup\.detach\(model\)$"):
        PatchUp(model)
    timm_patchup.detach(wrap(model))
    assert hook_count(model) == 0
    assert not any("forward" in vars(module) for module in model.modules())
    with pytest.raises(RuntimeError, match="detached from its model"):
        mix(images, labels)
    timm_patchup.detach(model)  # a cell of a notebook that runs again
    again = PatchUp(model, prob=1.0, sites=["stage1"])
    x, target = again(images, labels)
    again.loss(model(x), target)
    mix.detach()  # which takes the hooks of its successor off no more
    x, target = again(images, labels)
    again.loss(model(x), target)


def test_detach_of_what_has_no_hooks() -> None:
    timm_patchup.detach(tiny())
    mix: Mixer = create_mixer("cutmix", tiny(), num_classes=10)
    timm_patchup.detach(mix.model)  # at the input, nothing is attached
    assert mix(torch.randn(2, 3, 8, 8), torch.tensor([1, 2]))[1].shape == (2, 10)
    with pytest.raises(TypeError, match=r"^model must be an nn\.Module, got str$"):
        timm_patchup.detach("resnet18")  # type: ignore[arg-type]
