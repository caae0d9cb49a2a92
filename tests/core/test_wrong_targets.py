"""A loss of targets that are not from the last mixed batch raises: it would silently train on other labels."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

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


@pytest.mark.parametrize("when", ["after the loss", "before the loss", "before the pass"])
@pytest.mark.parametrize("prob", [0.0, 1.0])
@pytest.mark.parametrize("soft", [False, True])
def test_validation_batches_have_their_plain_loss(
    soft: bool, prob: float, when: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    """In eval mode, whatever the last training batch was, and at any moment of it."""
    mix = PatchUp(model, prob=prob, sites=["stage1"])
    unseen = torch.randn(4, 3, 64, 48)

    def validate() -> None:
        model.eval()
        output = model(unseen)
        for size in (4, 3):
            target = one_hot(labels[:size].flip(0), 10).float() if soft else labels[:size].flip(0)
            for criterion in (None, nn.CrossEntropyLoss(label_smoothing=0.1)):
                expected = cross_entropy(output[:size], target, label_smoothing=0.1 if criterion else 0.0)
                torch.testing.assert_close(mix.loss(output[:size], target, criterion), expected)
        model.train()

    x, target = mix(images, labels)
    if when == "before the pass":
        validate()
    output = model(x)
    if when == "before the loss":
        validate()
    torch.testing.assert_close(mix.loss(output, target), (1 + prob) * cross_entropy(output, target))
    if when == "after the loss":
        validate()


def test_in_eval_mode_targets_of_the_last_batch_are_checked_too(
    model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, target = mix(images, labels)
    output = model(x)
    model.eval()
    with pytest.raises(UserError, match="needs the targets that the mixer returned, not the labels"):
        mix.loss(output, labels)
    torch.testing.assert_close(mix.loss(output, target), 2 * cross_entropy(output, target))
    # A copy says no more whose it is: in eval mode it is validation.
    torch.testing.assert_close(mix.loss(output, target.clone()), cross_entropy(output, target))
    model.train()
    torch.testing.assert_close(mix.loss(output, target.clone()), 2 * cross_entropy(output, target))
    model.eval()
    with torch.no_grad():  # the loss of its images as they came, as when a model is to overfit one batch
        clean = model(images)
    torch.testing.assert_close(mix.loss(clean, labels), cross_entropy(clean, labels))
    mix.run(model, images, labels)
    with pytest.raises(UserError, match="of another batch than the last"):
        mix.loss(output, target)


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
    with pytest.raises(UserError, match="is not the one that mix"):
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


@pytest.mark.parametrize("criterion", [None, nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss()])
def test_a_model_with_other_classes_than_the_mixer(
    model: nn.Module, images: Tensor, labels: Tensor, criterion: nn.Module | None
) -> None:
    """As after a new head, which leaves ``model.num_classes`` as it was; torch's own error is about something else."""
    mix = PatchUp(model, prob=1.0)
    x, target = mix(images, labels)
    output = model(x)
    message = r"^output is \(\d+, 7\), but the targets are \(\d+, 10\); .* new head, give num_classes=7 to the mixer$"
    with pytest.raises(ValueError, match=message):
        mix.loss(output[:, :7], target, criterion)
    with pytest.raises(ValueError, match=r"both must be \(B, K\)$"):
        mix.loss(output[:1], target, criterion)
    assert torch.isfinite(mix.loss(output, target, criterion))
