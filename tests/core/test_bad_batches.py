"""Images, targets or a criterion that cannot be mixed end in one error with what was given and what is allowed."""

import copy
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from timm.loss import LabelSmoothingCrossEntropy
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from tests.support.expectations import tiny
from timm_patchup import Mixer, MixTask, PatchUp, create_mixer
from timm_patchup.errors import UserError

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


def test_naflex_batch(model: nn.Module, labels: Tensor) -> None:
    """What timm's NaFlex loader gives: patches, their coordinates and which are valid."""
    x = {"patches": torch.randn(4, 16, 768), "patch_coord": torch.zeros(4, 16, 2), "patch_valid": torch.ones(4, 16)}
    message = r"^x is a NaFlex batch \(a dict with patches\), .*: mixing needs images \(B, C, H, W\) of one size$"
    with pytest.raises(TypeError, match=message):
        PatchUp(model)(x, labels)  # type: ignore[arg-type]
    mix = PatchUp(copy.deepcopy(model))
    task = MixTask(mix.model, nn.CrossEntropyLoss(), mixer=mix, verbose=False)
    with pytest.raises(TypeError, match=message):
        task(x, labels)  # type: ignore[arg-type]


def test_empty_batch(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    message = r"^x is an empty batch of shape \(0, 3, 64, 48\): mixing needs at least one sample$"
    with pytest.raises(ValueError, match=message):
        PatchUp(model)(images[:0], labels[:0])


@pytest.mark.parametrize("wrong", [-1, 10, 1000])
def test_label_out_of_range(wrong: int, model: nn.Module, images: Tensor) -> None:
    with pytest.raises(ValueError, match=f"^target has the label {wrong}, allowed are 0 to .*9: check the labels"):
        PatchUp(model)(images, torch.tensor([0, 1, wrong, 9]))
    with pytest.raises(ValueError, match=r"^target has the label 3, allowed are 0 to .*2: check the labels"):
        PatchUp(copy.deepcopy(model), num_classes=3)(images, torch.tensor([0, 1, 2, 3]))


def test_class_indices_without_their_number(images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(tiny(), sites=["input"])
    with pytest.raises(
        ValueError, match=r"^class indices need the number of classes, .*: give num_classes= to the mixer$"
    ):
        mix(images, labels)
    mix(images, torch.rand(4, 10))


@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("soft", [False, True])
def test_target_of_wrong_length(rows: int, soft: bool, model: nn.Module, images: Tensor) -> None:
    target = torch.rand(rows, 10) if soft else torch.zeros(rows, dtype=torch.long)
    with pytest.raises(ValueError, match=f"^target has {rows} rows, x has 4 samples: give one target per sample$"):
        PatchUp(model)(images, target)


@pytest.mark.parametrize("columns", [1, 9, 11])
def test_target_of_wrong_width(columns: int, model: nn.Module, images: Tensor) -> None:
    with pytest.raises(
        ValueError, match=f"^target has {columns} columns, num_classes is 10: give num_classes={columns} "
    ):
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


# Losses and tasks


@dataclass
class MixingCollate:
    """A collate_fn that mixes, as torchvision's CutMix may be used."""

    mix: Mixer

    def __call__(self, samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        return self.mix(*default_collate(samples))


def test_mixing_in_a_worker_of_a_loader() -> None:
    """Every worker has a copy of the mixer, all with the same draws, and loses it at the end of the epoch."""
    collate = MixingCollate(create_mixer("cutmix", tiny(), num_classes=10))
    data: Any = [(torch.randn(3, 8, 8), 1)] * 2
    with pytest.raises(UserError, match=r"called in a worker process of a DataLoader.*call it in the training loop"):
        next(iter(DataLoader(data, batch_size=2, collate_fn=collate, num_workers=1)))
    _, target = next(iter(DataLoader(data, batch_size=2, collate_fn=collate)))
    assert target.shape == (2, 10)


class Output:
    """What models of transformers return."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


def test_output_that_is_no_tensor(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["input"])
    x, target = mix(images, labels)
    output = Output(model(x))
    with pytest.raises(
        TypeError, match=r"^output must be the tensor of logits \(B, K\), got Output: give output.logits$"
    ):
        mix.loss(output, target)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^output must be the tensor of logits \(B, K\), got tuple$"):
        mix.loss((output.logits,), target)  # type: ignore[arg-type]
    assert mix.loss(output.logits, target).isfinite()


def test_task_with_the_mixer_of_another_model(model: nn.Module) -> None:
    mix = PatchUp(copy.deepcopy(model))
    with pytest.raises(
        ValueError, match=r"^mixer was made for another model: make it for the model given to the task$"
    ):
        MixTask(model, nn.CrossEntropyLoss(), mixer=mix)


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(label_smoothing=0.1), LabelSmoothingCrossEntropy(0.1)])
def test_task_that_smooths_twice(criterion: nn.Module, model: nn.Module) -> None:
    message = r"^label smoothing is set twice, in the mixer \(0.2\) and in the criterion \(0.1\): leave one at 0$"
    with pytest.raises(ValueError, match=message):
        MixTask(model, criterion, mixer=PatchUp(model, label_smoothing=0.2))


@pytest.mark.parametrize("objective", ["paper", "l1"])
def test_mask_per_sample_with_a_mean_that_is_not_affine(
    objective: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    def mean(output: Tensor, target: Tensor) -> Tensor:
        return (output.softmax(1) - target).square().mean()

    mix = PatchUp(model, prob=1.0, sites=["stage1"], mask="sample", objective=objective)  # type: ignore[arg-type]
    x, target = mix(images, labels)
    output = model(x)
    message = "^a mask per sample .*reduction='none', or objective='l2', or mask='batch'$"
    with pytest.raises(ValueError, match=message):
        mix.loss(output, target, mean)
    assert torch.isfinite(mix.loss(output, target))
