"""register() reaches timm's own classes, unregister() leaves no trace, a plain import changes nothing."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import timm.data
import timm.loss
import timm.task
import torch
from timm.task import ClassificationTask, LogitDistillationTask, TrainingTask
from torch import nn

import timm_patchup
from timm_patchup import MixTask
from timm_patchup.core.plugin import MixSettingsError
from timm_patchup.methods.patchup import SoftPatchUp

# timm's own tasks, whatever the installed release has.
TASKS = [kind for kind in vars(timm.task).values() if isinstance(kind, type) and issubclass(kind, TrainingTask)]
# What a constructor knows, as it was before anything was registered.
ARGUMENTS = {kind: inspect.signature(kind) for kind in TASKS}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    timm_patchup.unregister()


def make_model() -> nn.Module:
    return timm.create_model("test_resnet", num_classes=10)


def test_register_configures_timms_task_even_if_it_was_imported_before() -> None:
    timm_patchup.register("soft_patchup", gamma=0.3, seed=5)
    task = ClassificationTask(make_model(), nn.CrossEntropyLoss(), device=torch.device("cpu"), verbose=False)
    assert isinstance(task, MixTask)
    assert isinstance(task, timm.task.ClassificationTask)
    assert task.mixer.method == SoftPatchUp(gamma=0.3)
    assert task.mixer.state_dict() == {"seed": 5, "count": 0}
    task(torch.randn(2, 3, 64, 64), torch.tensor([0, 1]))["loss"].backward()


def test_register_without_a_mix_adds_patchup_to_timm_data_alone() -> None:
    assert not hasattr(timm.data, "PatchUp")
    timm_patchup.register()
    assert timm.data.PatchUp is timm_patchup.PatchUp
    assert type(ClassificationTask(make_model(), nn.CrossEntropyLoss(), verbose=False)) is ClassificationTask


def test_unregister_takes_it_all_back() -> None:
    before = {kind: dict(vars(kind)) for kind in TASKS}
    assert len(before) >= 3
    timm_patchup.register("hard_patchup")
    timm_patchup.register("soft_patchup")
    timm_patchup.unregister()
    assert not hasattr(timm.data, "PatchUp")
    assert {kind: dict(vars(kind)) for kind in before} == before
    assert type(ClassificationTask(make_model(), nn.CrossEntropyLoss(), verbose=False)) is ClassificationTask
    timm_patchup.unregister()


@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_timms_own_arguments_pass_through(smoothing: float | None) -> None:
    """ClassificationTask(model) and criterion_kwargs, if this release of timm has them; else an explicit criterion."""
    known = ARGUMENTS[ClassificationTask].parameters
    arguments: dict[str, Any] = {"verbose": False}
    if "criterion_kwargs" not in known:
        arguments["criterion"] = nn.CrossEntropyLoss(label_smoothing=smoothing or 0.0)
    elif smoothing is not None:
        arguments["criterion_kwargs"] = {"smoothing": smoothing}
    x, y = torch.randn(4, 3, 64, 64), torch.tensor([0, 1, 2, 3])
    theirs = ClassificationTask(make_model(), **arguments)
    timm_patchup.register("hard_patchup", prob=0.0)
    ours = ClassificationTask(make_model(), **arguments)
    assert isinstance(ours, MixTask)
    assert type(ours.criterion) is type(theirs.criterion)
    ours.get_trainable_module().load_state_dict(theirs.get_trainable_module().state_dict())
    assert torch.equal(ours(x, y)["loss"], theirs(x, y)["loss"]), "a batch left alone has timm's loss to the last bit"
    timm_patchup.register("hard_patchup", prob=1.0, sites=["stage1"])
    mixing = ClassificationTask(make_model(), **arguments)
    result = mixing(x, y)
    result["loss"].backward()
    own = nn.functional.one_hot(y, 10).float()
    draw = mixing.mixer.draw
    target = draw.kept * own + (1.0 - draw.kept) * own[draw.partner]
    smooth = smoothing if smoothing is not None else getattr(mixing.criterion, "smoothing", 0.0)
    expected = 2.0 * nn.functional.cross_entropy(result["output"], target, label_smoothing=smooth)
    torch.testing.assert_close(result["loss"], expected)


def test_signature_of_timms_tasks_stays_visible() -> None:
    timm_patchup.register("hard_patchup")
    assert {kind: inspect.signature(kind) for kind in TASKS} == ARGUMENTS


def test_positional_and_named_arguments_reach_timm_alike() -> None:
    timm_patchup.register("hard_patchup")
    criterion = nn.CrossEntropyLoss()
    for task in (
        ClassificationTask(make_model(), criterion, verbose=False),
        ClassificationTask(model=make_model(), criterion=criterion, verbose=False),
    ):
        assert isinstance(task, MixTask)
        assert task.criterion is criterion
    with pytest.raises(TypeError, match="no_such_argument"):
        ClassificationTask(make_model(), criterion, no_such_argument=1)


@pytest.mark.parametrize("with_init", [False, True])
def test_subclasses_of_a_users_own_are_refused_by_name(with_init: bool) -> None:
    class Own(ClassificationTask):
        pass

    class OwnWithInit(ClassificationTask):
        def __init__(self, model: nn.Module) -> None:
            super().__init__(model, nn.CrossEntropyLoss(), verbose=False)

    kind = OwnWithInit if with_init else Own
    arguments: dict[str, Any] = {} if with_init else {"criterion": nn.CrossEntropyLoss(), "verbose": False}
    timm_patchup.register("hard_patchup")
    message = rf"^{kind.__name__} cannot be combined with a mix \(hard_patchup\): .*; derive it from MixTask$"
    with pytest.raises(MixSettingsError, match=message):
        kind(make_model(), **arguments)
    for off in (lambda: timm_patchup.register("none"), timm_patchup.register, timm_patchup.unregister):
        off()
        assert type(kind(make_model(), **arguments)) is kind


def test_subclass_of_mix_task_brings_its_own_mixer() -> None:
    class Own(MixTask):
        pass

    timm_patchup.register("soft_patchup")
    model = make_model()
    task = Own(model, nn.CrossEntropyLoss(), mixer=timm_patchup.PatchUp(model, mode="hard"), verbose=False)
    assert type(task) is Own
    assert task.mixer.method.name == "hard_patchup"


@pytest.mark.skipif(not hasattr(timm.task, "MultiLabelClassificationTask"), reason="timm before 1.0.31")
class TestSeveralLabels:
    """timm's task of dense labels: they are mixed as they are, and smoothed by timm's criterion."""

    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 1, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0]]).float()

    def make(self, **arguments: Any) -> Any:
        torch.manual_seed(0)
        model = timm.create_model("test_resnet", num_classes=3)
        return timm.task.MultiLabelClassificationTask(model, verbose=False, **arguments)

    @pytest.mark.parametrize("smoothing", [0.0, 0.2])
    def test_objective(self, smoothing: float) -> None:
        timm_patchup.register("hard_patchup", prob=1.0, sites=["stage1"], gamma=0.3)
        task = self.make(criterion_kwargs={"smoothing": smoothing}, threshold=0.4)
        assert isinstance(task, MixTask)
        assert isinstance(task, timm.task.MultiLabelClassificationTask)
        assert task.threshold == 0.4
        result = task(self.x, self.labels)
        result["loss"].backward()
        draw = task.mixer.draw
        assert 0.0 < draw.kept < 1.0
        mixed = draw.kept * self.labels + (1.0 - draw.kept) * self.labels[draw.partner]
        smooth = mixed * (1.0 - smoothing) + 0.5 * smoothing
        expected = 2.0 * nn.functional.binary_cross_entropy_with_logits(result["output"], smooth)
        torch.testing.assert_close(result["loss"], expected)

    @pytest.mark.parametrize("loss_type", getattr(timm.loss, "MULTI_LABEL_LOSS_TYPES", ()))
    def test_batch_left_alone_is_timms(self, loss_type: str) -> None:
        needed = {"class_counts": [2, 3, 4], "num_samples": 9} if loss_type == "db" else {}
        arguments = {"criterion_kwargs": {"loss_type": loss_type, **needed}}
        theirs = self.make(**arguments)
        timm_patchup.register("hard_patchup", prob=0.0)
        ours = self.make(**arguments)
        assert type(ours.criterion) is type(theirs.criterion)
        assert type(ours.create_evaluator()) is type(theirs.create_evaluator())
        assert torch.equal(ours(self.x, self.labels)["loss"], theirs(self.x, self.labels)["loss"])

    def test_class_indices_have_timms_error(self) -> None:
        timm_patchup.register("hard_patchup")
        task = self.make()
        with pytest.raises(ValueError, match="dense floating-point"):
            task(self.x, torch.tensor([0, 1, 2, 0]))

    def test_smoothing_is_the_criterions(self) -> None:
        timm_patchup.register("hard_patchup", label_smoothing=0.1)
        with pytest.raises(
            ValueError, match=r"^label_smoothing of the mixer \(0.1\) .*criterion_kwargs=dict\(smoothing"
        ):
            self.make()

    def test_own_class_of_both(self) -> None:
        class Own(MixTask, timm.task.MultiLabelClassificationTask):
            pass

        model = timm.create_model("test_resnet", num_classes=3)
        task = Own(model, mixer=timm_patchup.PatchUp(model, prob=1.0), verbose=False)
        task(self.x, self.labels)["loss"].backward()
        assert task.mixer.draw is not None


def test_a_task_of_timm_that_is_not_known_refuses_to_run_unmixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of timm's tasks have a classification loss today: one that has not is refused by name."""
    monkeypatch.delitem(timm_patchup.core.plugin._mixing_kinds, LogitDistillationTask)
    timm_patchup.register("cutmix")
    message = r"^LogitDistillationTask cannot be combined with a mix \(cutmix\): it would not be mixed$"
    with pytest.raises(MixSettingsError, match=message):
        LogitDistillationTask(make_model(), make_model())


def test_a_model_that_cannot_be_mixed_is_an_error_of_the_configured_mix() -> None:
    timm_patchup.register("cutmix")
    wrapped = nn.DataParallel(make_model())
    with pytest.raises(MixSettingsError, match=r"^model is wrapped in DataParallel: give model\.module; "):
        ClassificationTask(wrapped, nn.CrossEntropyLoss(), verbose=False)


def test_distillation_runs_if_nothing_is_mixed() -> None:
    for mix in ("none", None):
        timm_patchup.register(mix)
        LogitDistillationTask(make_model(), make_model(), verbose=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: timm_patchup.register("hrd_patchup"), "did you mean hard_patchup"),
        (lambda: timm_patchup.register("hard_patchup", gama=1), "unknown setting of hard_patchup 'gama'.*gamma"),
        (lambda: timm_patchup.register("hard_patchup", gamma=2), r"gamma must be a number in \[0, 1\], got 2"),
        (lambda: timm_patchup.register("hard_patchup", gamma="5e-1"), "gamma must be a number .*, got '5e-1'"),
        (lambda: timm_patchup.register("hard_patchup", num_splits=0), "num_splits must be a whole number .*, got 0"),
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
