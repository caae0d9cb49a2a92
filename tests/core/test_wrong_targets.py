"""A loss of targets that are not those of the last mixed batch raises: it would train on other labels in silence."""

import pytest
import torch
from torch import Tensor, nn

import timm_patchup
from timm_patchup import PatchUp
from timm_patchup.errors import UserError


def test_labels_of_a_mixed_batch_are_refused(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0)
    x, target = mix(images, labels)
    output = model(x)
    for criterion in (None, nn.CrossEntropyLoss()):
        with pytest.raises(UserError, match="needs the targets that the mixer returned, not the labels"):
            mix.loss(output, labels, criterion)
    assert torch.isfinite(mix.loss(output, target))
    assert torch.isfinite(mix.loss(output, target.clone()))


def test_labels_of_a_batch_that_was_not_mixed_are_fine(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=0.0)
    x, target = mix(images, labels)
    output = model(x)
    assert torch.equal(mix.loss(output, labels, nn.CrossEntropyLoss()), mix.loss(output, target, nn.CrossEntropyLoss()))


@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_a_loss_of_an_older_batch_is_refused(model: nn.Module, images: Tensor, labels: Tensor, prob: float) -> None:
    first = PatchUp(model, prob=1.0)
    x, older = first(images, labels)
    output = model(x)
    first.method = type(first.method)(prob=prob)
    x, target = first(images, labels)
    newer = model(x)
    with pytest.raises(UserError, match="of another batch than the last"):
        first.loss(output, older)
    assert torch.isfinite(first.loss(newer, target))


def test_a_batch_of_another_size_is_refused(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0)
    x, target = mix(images, labels)
    output = model(x)
    with pytest.raises(UserError, match="of another batch than the last"):
        mix.loss(output[:2], target[:2])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"seed": -1}, "seed must be"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"num_classes": 0}, "num_classes"),
    ],
)
def test_register_refuses_wrong_values_at_once(settings: dict[str, float], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        timm_patchup.register("hard_patchup", **settings)
