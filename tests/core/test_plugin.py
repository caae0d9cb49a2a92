"""register() reaches timm's own classes, unregister() leaves no trace, a plain import changes nothing."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import timm.data
import timm.task
import torch
from timm.task import ClassificationTask, LogitDistillationTask
from torch import nn

import timm_patchup
from timm_patchup import MixTask


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    timm_patchup.unregister()


def make_model() -> nn.Module:
    return timm.create_model("test_resnet", num_classes=10)


def test_register_configures_timms_task_even_where_it_was_imported_before() -> None:
    timm_patchup.register("soft_patchup", gamma=0.3, seed=5)
    task = ClassificationTask(make_model(), nn.CrossEntropyLoss(), device=torch.device("cpu"), verbose=False)
    assert isinstance(task, MixTask)
    assert isinstance(task, timm.task.ClassificationTask)
    assert task.mixer.settings()["gamma"] == 0.3
    assert task.mixer.settings()["mode"] == "soft"
    task(torch.randn(2, 3, 64, 64), torch.tensor([0, 1]))["loss"].backward()


def test_register_without_a_mix_adds_patchup_to_timm_data_alone() -> None:
    assert not hasattr(timm.data, "PatchUp")
    timm_patchup.register()
    assert timm.data.PatchUp is timm_patchup.PatchUp
    assert type(ClassificationTask(make_model(), nn.CrossEntropyLoss(), verbose=False)) is ClassificationTask


def test_unregister_takes_it_all_back() -> None:
    before = {kind: dict(vars(kind)) for kind in (ClassificationTask, LogitDistillationTask)}
    timm_patchup.register("hard_patchup")
    timm_patchup.register("soft_patchup")
    timm_patchup.unregister()
    assert not hasattr(timm.data, "PatchUp")
    assert {kind: dict(vars(kind)) for kind in before} == before
    assert type(ClassificationTask(make_model(), nn.CrossEntropyLoss(), verbose=False)) is ClassificationTask
    timm_patchup.unregister()


def test_subclasses_of_timms_task_are_left_alone() -> None:
    class Own(ClassificationTask):
        pass

    timm_patchup.register("hard_patchup")
    assert type(Own(make_model(), nn.CrossEntropyLoss(), verbose=False)) is Own


def test_distillation_refuses_to_run_unmixed() -> None:
    timm_patchup.register("hard_patchup")
    with pytest.raises(ValueError, match="LogitDistillationTask cannot be combined with a mix"):
        LogitDistillationTask(make_model(), make_model())
    timm_patchup.register("none")
    LogitDistillationTask(make_model(), make_model(), verbose=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: timm_patchup.register("hrd_patchup"), "did you mean hard_patchup"),
        (lambda: timm_patchup.register("hard_patchup", gama=1), "unknown setting of hard_patchup 'gama'.*gamma"),
        (lambda: timm_patchup.register(gamma=1), "settings need a method"),
    ],
)
def test_bad_settings_are_named_at_once(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
    assert not hasattr(timm.data, "PatchUp")


def test_plain_import_changes_only_timms_model_registry_and_stays_light() -> None:
    code = """
import sys, timm, timm.data, timm.task
def state():
    kinds = [getattr(timm.task, name) for name in timm.task.__all__]
    return [sorted(vars(timm.data)), [sorted(vars(k)) for k in kinds if isinstance(k, type)]]
before = state()
import timm_patchup
assert state() == before
heavy = {"datasets", "accelerate", "foolbox", "matplotlib", "pandas", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
