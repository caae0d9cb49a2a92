"""The Trainer mixin agrees with a plain loop bit for bit, resumes exactly and refuses what would not be mixed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from timm_patchup import Mixer, create_mixer
from timm_patchup.integrations.transformers import MixTrainer, MixTrainerMixin

from .small import LR, same_weights, samples, small_mixer, small_model, train_plainly, weights_of

DATA = [{"pixel_values": image, "labels": label} for image, label in samples()]


def wrapped_model(**config: Any) -> TimmWrapperForImageClassification:
    """The small model as transformers wraps timm's, with the same weights at every call."""
    model = TimmWrapperForImageClassification(TimmWrapperConfig(architecture="test_resnet", num_labels=10, **config))
    model.timm_model.load_state_dict(small_model().state_dict())
    return model


def vit() -> ViTForImageClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=10))


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    usual: dict[str, Any] = {"max_steps": 6, "per_device_train_batch_size": 4, "use_cpu": True, "report_to": []}
    usual |= {"max_grad_norm": 0.0, "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
    return TrainingArguments(str(folder), **{**usual, **options})


def sgd(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def make(folder: Path, model: Any, mixer: Mixer | None, kind: type | None = None, **options: Any) -> Any:
    own = {name: options.pop(name) for name in ("criterion", "compute_loss_func") if name in options}
    mixed = {} if mixer is None else {"mixer": mixer}
    kind = kind or (Trainer if mixer is None else MixTrainer)
    args = arguments(folder, **options)
    return kind(model, args, train_dataset=DATA, eval_dataset=DATA, optimizers=sgd(model), **mixed, **own)


def record_batches(trainer: Trainer) -> list[tuple[Tensor, Tensor]]:
    """Return a list that fills with the batches of the trainer, which shuffles."""
    batches, collate = [], trainer.data_collator

    def recording(features: list) -> Any:
        batch = collate(features)
        batches.append((batch["pixel_values"], batch["labels"]))
        return batch

    trainer.data_collator = recording
    return batches


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bf16", [False, True])
def test_training_matches_a_plain_loop(bf16: bool, accumulate: int, tmp_path: Path) -> None:
    model = wrapped_model()
    mix = small_mixer(model.timm_model)
    trainer = make(tmp_path, model, mix, bf16=bf16, gradient_accumulation_steps=accumulate)
    batches = record_batches(trainer)
    trainer.train()
    twin = small_model()
    loop = _train_bf16 if bf16 else train_plainly
    loop(twin, small_mixer(twin), batches[: 6 * accumulate], accumulate=accumulate)
    assert same_weights(weights_of(model.timm_model), weights_of(twin))
    assert mix.state_dict()["count"] == 6 * accumulate, "one draw per micro-batch"


def test_a_loss_of_the_models_own_does_not_change_the_accumulated_one(tmp_path: Path) -> None:
    """Such a model would divide by the number of samples in all micro-batches, and the Trainer would not divide."""

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = vit()

        def forward(self, x: Tensor) -> Tensor:
            return self.vit(x).logits

    model, twin = vit(), Logits()
    trainer = make(tmp_path, model, create_mixer("mixup", model, num_classes=10), gradient_accumulation_steps=2)
    batches = record_batches(trainer)
    trainer.train()
    train_plainly(twin, create_mixer("mixup", twin, num_classes=10), batches[:12], accumulate=2)
    assert same_weights(weights_of(model), weights_of(twin.vit))


def _train_bf16(model: nn.Module, mix: Mixer, batches: list, *, accumulate: int) -> None:
    """A plain loop as Accelerate runs it: autocast around the model alone, and its output in float32."""
    run = model.forward
    model.forward = lambda x: torch.autocast("cpu", torch.bfloat16)(run)(x).float()  # type: ignore[method-assign]
    train_plainly(model, mix, batches, accumulate=accumulate)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_left_alone_train_as_with_a_plain_trainer(accumulate: int, tmp_path: Path) -> None:
    ours, theirs = wrapped_model(), wrapped_model()
    mix = create_mixer("hard_patchup", ours.timm_model, prob=0.0, block_size=3)
    for model, mixer in ((ours, mix), (theirs, None)):
        make(tmp_path, model, mixer, gradient_accumulation_steps=accumulate).train()
    assert same_weights(weights_of(ours), weights_of(theirs))
    mixed = wrapped_model()
    make(tmp_path, mixed, small_mixer(mixed.timm_model)).train()
    assert not same_weights(weights_of(mixed), weights_of(theirs))


@pytest.mark.parametrize("restore_callbacks", [False, True])
def test_resume_is_exact_in_the_middle_of_an_epoch(restore_callbacks: bool, tmp_path: Path) -> None:
    model = wrapped_model()
    options = {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2}
    make(tmp_path, model, small_mixer(model.timm_model), **options).train()
    state = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["MixerState"]["attributes"]["draws"] == {"seed": 3, "count": 4}
    again = wrapped_model()
    mix = small_mixer(again.timm_model, seed=9)
    resumed = make(tmp_path, again, mix, **options, restore_callback_states_from_checkpoint=restore_callbacks)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert mix.state_dict() == {"seed": 3, "count": 12}
    assert same_weights(weights_of(again), weights_of(model))
    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["MixerState"]["attributes"]["draws"] == {"seed": 3, "count": 12}


def test_a_checkpoint_without_a_mixer_starts_the_draws(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2}
    make(tmp_path, wrapped_model(), None, **options).train()
    model = wrapped_model()
    mix = small_mixer(model.timm_model)
    make(tmp_path, model, mix, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert mix.state_dict() == {"seed": 3, "count": 2}


def test_evaluation_is_the_trainers_and_draws_nothing(tmp_path: Path) -> None:
    ours, theirs = wrapped_model(), wrapped_model()
    mix = small_mixer(ours.timm_model)
    losses = [make(tmp_path, model, mixer).evaluate()["eval_loss"] for model, mixer in ((ours, mix), (theirs, None))]
    assert losses[0] == losses[1]
    assert mix.draw is None


@pytest.mark.parametrize("make_model", [vit, wrapped_model, lambda: wrapped_model(return_dict=False)])
def test_whatever_a_model_returns_is_mixed(make_model: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = make_model()
    return_dict = model.config.return_dict
    mix = create_mixer("cutmix", model, num_classes=10)
    trainer = make(tmp_path, model, mix, max_steps=2)
    inputs = {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.tensor([1, 2, 3, 4])}
    given = dict(inputs)
    loss, outputs = trainer.compute_loss(model.train(), inputs, return_outputs=True)
    x, target = mix(inputs["pixel_values"], inputs["labels"], draw=mix.draw)
    logits = model(x).logits if return_dict else model(x)[0]
    torch.testing.assert_close(loss, nn.functional.cross_entropy(logits, target))
    torch.testing.assert_close(outputs["logits"] if return_dict else outputs[1], logits)
    assert inputs.keys() == given.keys(), "the Trainer uses its batch again"
    assert inputs["pixel_values"] is given["pixel_values"]
    trainer.train()


def test_a_criterion_of_the_user_sees_soft_targets(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    def criterion(output: Tensor, target: Tensor) -> Tensor:
        seen.append(target)
        return nn.functional.binary_cross_entropy_with_logits(output, target)

    model = wrapped_model()
    mix = create_mixer("mixup", model.timm_model)
    make(tmp_path, model, mix, criterion=criterion).train()
    assert len(seen) == 6
    assert all(target.shape == (4, 10) for target in seen)


def test_the_mixin_takes_a_trainer_of_the_user(tmp_path: Path) -> None:
    class Own(MixTrainerMixin, Trainer):
        steps = 0

        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            self.steps += 1
            return super().training_step(*args, **kwargs)

    model = wrapped_model()
    trainer = make(tmp_path, model, small_mixer(model.timm_model), Own)
    trainer.train()
    assert trainer.steps == trainer.mixer.state_dict()["count"] == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing_factor": 0.1}, "give label_smoothing= to the mixer"),
        ({"compute_loss_func": lambda outputs, labels, **kwargs: outputs.logits.mean()}, "give criterion="),
    ],
)
def test_losses_that_take_no_mixed_targets_are_refused(options: dict, message: str, tmp_path: Path) -> None:
    model = wrapped_model()
    with pytest.raises(ValueError, match=message):
        make(tmp_path, model, small_mixer(model.timm_model), **options)


def test_models_that_the_mixer_does_not_know_are_refused(tmp_path: Path) -> None:
    mix = small_mixer(small_model())
    with pytest.raises(ValueError, match="a model that is not in the Trainer's"):
        make(tmp_path, wrapped_model(), mix)
    with pytest.raises(ValueError, match="model_init makes a model that the mixer does not know"):
        MixTrainer(model_init=lambda: wrapped_model(), args=arguments(tmp_path), train_dataset=DATA, mixer=mix)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: batch.pop("labels"), "mixing needs batches of pixel_values and labels, got pixel_values"),
        (lambda batch: batch.update(labels=torch.rand(4, 10)), "float labels could be distributions or several"),
    ],
)
def test_batches_that_are_not_images_and_labels_are_refused(
    change: Callable[[dict], Any], message: str, tmp_path: Path
) -> None:
    model = wrapped_model()
    trainer = make(tmp_path, model, small_mixer(model.timm_model))
    batch = {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.tensor([1, 2, 3, 4])}
    change(batch)
    with pytest.raises(ValueError, match=message):
        trainer.compute_loss(model.train(), batch)
