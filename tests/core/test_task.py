"""MixTask is a timm.task.ClassificationTask: usable wherever timm's is, with timm's own criteria."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.task import ClassificationTask, resume_task_checkpoint
from timm.utils import CheckpointSaver
from torch import Tensor, nn

from timm_patchup import MixTask, PatchUp, create_mixer
from timm_patchup.core.task import TaskMixing


def make_task(criterion: nn.Module, **settings: object) -> MixTask:
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=10)
    return MixTask(model, criterion, mixer=PatchUp(model, **settings), verbose=False)


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, 64, 64, generator=generator), torch.randint(10, (4,), generator=generator)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        LabelSmoothingCrossEntropy(0.1),
        SoftTargetCrossEntropy(),
        BinaryCrossEntropy(smoothing=0.1),
        BinaryCrossEntropy(smoothing=0.0, target_threshold=0.3),
    ],
    ids=["ce", "ce-smooth", "smooth", "soft", "bce", "bce-threshold"],
)
@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_every_criterion_of_timm_trains_with_integer_and_soft_targets(
    criterion: nn.Module, soft: bool, prob: float
) -> None:
    task = make_task(criterion, prob=prob, sites=["stem", "stage1"])
    assert isinstance(task, ClassificationTask)
    x, y = batch()
    target = nn.functional.one_hot(y, 10).float() if soft else y
    result = task(x, target)
    result["loss"].backward()
    assert result["output"].shape == (4, 10)
    assert torch.isfinite(result["loss"])
    assert task.get_trainable_module().conv1[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(), LabelSmoothingCrossEntropy(0.1), BinaryCrossEntropy(0.1)])
def test_a_batch_left_alone_has_exactly_timms_loss(criterion: nn.Module) -> None:
    task = make_task(criterion, prob=0.0)
    plain = ClassificationTask(task.get_trainable_module(), criterion, verbose=False)
    x, y = batch()
    assert torch.equal(task(x, y)["loss"], plain(x, y)["loss"])
    task.mixer.method = replace(task.mixer.method, prob=1.0)
    task.get_trainable_module().eval()
    assert torch.equal(task(x, y)["loss"], plain(x, y)["loss"])


@pytest.mark.parametrize("criterion", [SoftTargetCrossEntropy(), nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0))])
def test_batches_mixed_and_left_alone_have_losses_of_one_scale(criterion: nn.Module) -> None:
    """As many samples as classes: a loss that takes labels for distributions would silently broadcast them."""
    x, y = torch.randn(10, 3, 32, 32), torch.arange(10)
    losses = []
    for prob in (0.0, 1.0):
        task = make_task(criterion, prob=prob, sites=["stage1"], gamma=0.0, objective="l2")  # mixes nothing
        losses.append(task(x, y)["loss"])
    torch.testing.assert_close(losses[0], losses[1])


def test_targets_that_came_soft_are_not_smoothed_by_bce() -> None:
    """The script of timm keeps the default smoothing of its BinaryCrossEntropy beside its own mixup."""
    criterion = BinaryCrossEntropy()
    assert criterion.smoothing == 0.1
    x, y = batch()
    soft = nn.functional.one_hot(y, 10).float().roll(1, 0) * 0.3 + nn.functional.one_hot(y, 10).float() * 0.7
    task = make_task(criterion, prob=0.0)
    plain = ClassificationTask(task.get_trainable_module(), criterion, verbose=False)
    assert torch.equal(task(x, soft)["loss"], plain(x, soft)["loss"])
    task.mixer.method = replace(task.mixer.method, prob=1.0)
    asked: list[torch.Tensor] = []
    criterion.register_forward_pre_hook(lambda module, args: asked.append(args[1]))
    task(x, soft)
    assert all((target.sum(dim=1) - 1).abs().max() < 1e-5 and (target == 0).any() for target in asked)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothing_in_the_criterion_equals_smoothing_in_the_mixer(smoothing: float) -> None:
    losses = []
    for criterion, in_mixer in ((LabelSmoothingCrossEntropy(smoothing), 0.0), (nn.CrossEntropyLoss(), smoothing)):
        task = make_task(criterion, prob=1.0, sites=["stage1"], label_smoothing=in_mixer)
        losses.append(task(*batch())["loss"])
    torch.testing.assert_close(losses[0], losses[1])


def test_compile_and_ema_follow_timm() -> None:
    torch._dynamo.reset()
    task = make_task(nn.CrossEntropyLoss(), prob=1.0, sites=["stage1"])
    eager = make_task(nn.CrossEntropyLoss(), prob=1.0, sites=["stage1"])
    eager.get_trainable_module().load_state_dict(task.get_trainable_module().state_dict())
    start = copy.deepcopy(task.get_trainable_module().state_dict())
    ema = task.setup_ema(decay=0.5)
    compiled = task.compile(backend="aot_eager")
    assert task.get_eval_model() is compiled
    x, y = batch()
    loss = task(x, y)["loss"]
    loss.backward()
    torch.testing.assert_close(loss, eager(x, y)["loss"])
    assert eager.mixer.draw is not None
    plain = nn.functional.cross_entropy(eager.get_trainable_module().eval()(x), y)
    assert not torch.allclose(loss, 2.0 * plain, rtol=1e-2), "the compiled model mixes"
    weight = task.get_trainable_module().conv1[0].weight
    with torch.no_grad():
        weight.add_(1.0)
    task.update_ema(step=2)
    torch.testing.assert_close(ema.module.conv1[0].weight, start["conv1.0.weight"] + 0.5)
    ema.module.eval()
    expected = copy.deepcopy(ema.module)(x)
    assert torch.equal(task.get_eval_model(ema=True)(x), expected), "the average is not mixed"


def test_checkpoint_of_timm_holds_the_draws_and_the_plain_weights(tmp_path: Path) -> None:
    task = make_task(nn.CrossEntropyLoss(), prob=0.6, seed=3)
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    model = task.get_trainable_module()
    for _ in range(3):
        task(*batch())["loss"].backward()
    saver = CheckpointSaver(model, optimizer, task=task, checkpoint_dir=str(tmp_path), recovery_dir=str(tmp_path))
    saver.save_checkpoint(0, metric=1.0)
    expected = [(task(*batch())["loss"].item(), task.mixer.draw.site) for _ in range(5)]

    other = make_task(nn.CrossEntropyLoss(), prob=0.6, seed=8)
    assert resume_task_checkpoint(other, str(tmp_path / "last.pth.tar"), log_info=False) == 1
    assert list(other.get_checkpoint_state()["state_dict"]) == list(timm.create_model("test_resnet").state_dict())
    assert [(other(*batch())["loss"].item(), other.mixer.draw.site) for _ in range(5)] == expected


def test_checkpoint_without_draws_still_loads() -> None:
    task = make_task(nn.CrossEntropyLoss())
    task.load_checkpoint_state(task.get_trainable_module().state_dict(), None)
    assert task.mixer.state_dict() == {"seed": 0, "count": 0}


def test_none_is_plain_timm() -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=10)  # any model will do
    task = MixTask(model, nn.CrossEntropyLoss(), mixer=create_mixer("none", model), verbose=False)
    plain = ClassificationTask(model, nn.CrossEntropyLoss(), verbose=False)
    x, y = torch.randn(2, 3, 160, 160), torch.tensor([1, 2])
    assert torch.equal(task(x, y)["loss"], plain(x, y)["loss"])


def test_soft_targets_are_smoothed_as_class_indices_are() -> None:
    x, y = batch()
    losses = []
    for target in (y, nn.functional.one_hot(y, 10).float()):
        task = make_task(nn.CrossEntropyLoss(), prob=1.0, sites=["stage1"], label_smoothing=0.2)
        losses.append(task(x, target)["loss"])
    torch.testing.assert_close(losses[0], losses[1])
    plain = make_task(nn.CrossEntropyLoss(), prob=1.0, sites=["stage1"])
    assert not torch.allclose(plain(x, y)["loss"], losses[1])


@pytest.mark.parametrize("times", [0, 2])
def test_a_task_without_one_loss_is_refused(times: int) -> None:
    class Base(ClassificationTask):
        def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
            output = self.trainable_module(input)
            losses = [self.criterion(output, target) for _ in range(times)]
            return {"loss": sum(losses, output.sum()), "output": output}

    class Both(TaskMixing, Base):
        pass

    model = timm.create_model("test_resnet", num_classes=10)
    task = Both(model, nn.CrossEntropyLoss(), mixer=create_mixer("cutmix", model), verbose=False)
    with pytest.raises(RuntimeError, match=f"^Both called its criterion {times} times, mixing needs one loss$"):
        task(*batch())
    assert isinstance(task.criterion, nn.CrossEntropyLoss), "timm's own is back"
