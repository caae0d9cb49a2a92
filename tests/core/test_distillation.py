"""timm's distillation tasks with a mixer: student and teacher see the same mixed images; hidden sites are refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import timm
import timm.task
import torch
from timm.task import LogitDistillationTask
from torch import Tensor, nn

import timm_patchup
from tests.conftest import NUM_CLASSES
from timm_patchup import create_mixer
from timm_patchup.core.task import DISTILLATION, TaskMixing

METHODS_AT_INPUT = {"mixup": {}, "cutmix": {}, "cutout": {"length": 8}, "puzzle_mix": {}}
METHODS_AT_INPUT |= {"hard_patchup": {"sites": ["input"], "prob": 1.0}}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    timm_patchup.unregister()


def student_for(kind: type) -> nn.Module:
    """A small student; with two heads for the task that needs them."""
    if "Token" in kind.__name__:
        sizes = {"embed_dim": 24, "depth": 1, "num_heads": 2, "img_size": 32, "patch_size": 8}
        return timm.create_model("deit_tiny_distilled_patch16_224", num_classes=NUM_CLASSES, **sizes)
    return timm.create_model("test_resnet", num_classes=NUM_CLASSES)


def pair(kind: type) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return student_for(kind), timm.create_model("test_efficientnet", num_classes=NUM_CLASSES)


def images_seen_by(model: nn.Module) -> list[Tensor]:
    """Return a list that fills with the images a model is run on."""
    seen: list[Tensor] = []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().clone()))
    return seen


def colours(model: nn.Module) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(model.pretrained_cfg[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    return mean, std


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, 32, 32), torch.tensor([3, 1, 4, 9])


def test_tasks_are_found() -> None:
    assert {kind.__name__ for kind in DISTILLATION} >= {"LogitDistillationTask", "FeatureDistillationTask"}


@pytest.mark.parametrize("name", METHODS_AT_INPUT)
@pytest.mark.parametrize("kind", DISTILLATION, ids=lambda kind: kind.__name__)
def test_student_and_teacher_see_the_same_mixed_images(kind: type, name: str) -> None:
    student, teacher = pair(kind)
    timm_patchup.register(name, **METHODS_AT_INPUT[name])
    task: Any = kind(student_model=student, teacher_model=teacher, criterion=nn.CrossEntropyLoss(), verbose=False)
    assert isinstance(task, kind)
    assert isinstance(task, TaskMixing)
    by_student, by_teacher = images_seen_by(student), images_seen_by(teacher)
    (mean, std), (teacher_mean, teacher_std) = colours(student), colours(teacher)
    altered = []
    for _ in range(4):  # a method that looks at the images may leave a batch as it is
        x, y = batch()
        result = task(x, y)
        mixed, target = task.mixer(x, y, draw=task.mixer.draw)
        assert torch.equal(by_student[-1], mixed)
        torch.testing.assert_close(by_teacher[-1] * teacher_std + teacher_mean, mixed * std + mean)
        factor = 2.0 if name == "hard_patchup" else 1.0
        task_loss = factor * nn.functional.cross_entropy(result["output"], target)
        torch.testing.assert_close(result["task_loss"], task_loss)
        rest = next(value for key, value in result.items() if key in ("kd_loss", "distill_loss"))
        torch.testing.assert_close(result["loss"], task_loss + rest)
        result["loss"].backward()
        altered.append(not torch.equal(mixed, x))
    assert any(altered)
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.mark.parametrize("kind", DISTILLATION, ids=lambda kind: kind.__name__)
def test_batches_left_alone_have_timms_loss(kind: type) -> None:
    x, y = batch()
    results = []
    for mix in (None, "cutmix"):
        timm_patchup.register(mix, **({} if mix is None else {"prob": 0.0}))
        torch.manual_seed(0)
        student, teacher = pair(kind)
        torch.manual_seed(0)
        task = kind(student, teacher, nn.CrossEntropyLoss(), verbose=False)
        results.append(task(x, y))
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])


@pytest.mark.parametrize("settings", [{}, {"sites": ["stem"]}, {"sites": ["input", "stage1"]}])
@pytest.mark.parametrize("name", ["hard_patchup", "manifold_mixup"])
def test_hidden_sites_are_refused_with_the_reason(name: str, settings: dict) -> None:
    student, teacher = pair(LogitDistillationTask)
    timm_patchup.register(name, **settings)
    message = rf"^distillation cannot be combined with {name} at .*, inside the student: the teacher would not be mixed"
    with pytest.raises(timm_patchup.errors.UserError, match=message):
        LogitDistillationTask(student, "no_such_teacher", verbose=False)  # refused before a teacher is loaded
    with pytest.raises(timm_patchup.errors.UserError, match=message):
        LogitDistillationTask(student, teacher, verbose=False)
    timm_patchup.register("cutmix")
    LogitDistillationTask(student, teacher, verbose=False)(*batch())["loss"].backward()


def test_a_task_of_ones_own_with_its_checkpoint() -> None:
    class Task(TaskMixing, LogitDistillationTask):
        pass

    def make() -> Task:
        student, teacher = pair(Task)
        return Task(student, teacher, verbose=False, mixer=create_mixer("cutmix", student, seed=2))

    task = make()
    for _ in range(3):
        task(*batch())["loss"].backward()
    state = task.get_task_state()
    assert state["mixer"] == {"seed": 2, "count": 3}
    again = make()
    again.load_task_state(state)
    assert again.mixer.state_dict() == task.mixer.state_dict()
    student, teacher = pair(Task)
    with pytest.raises(ValueError, match="mixer was made for another model"):
        Task(student, teacher, verbose=False, mixer=create_mixer("cutmix", teacher))
