"""Targets and the learning objective of a mixer, against the oracle: the short form, the general form, smoothing."""

from collections.abc import Callable
from dataclasses import replace
from math import isclose

import pytest
import torch
import torch.nn.functional as F
from timm.data.mixup import mixup_target
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from tests.support import oracle
from timm_patchup import Draw, PatchUp, create_mixer
from timm_patchup.core.draw import Mix
from timm_patchup.core.functional import mix_targets, patchup_loss
from timm_patchup.core.loss import for_soft_targets

# The objective


def by_hand(kept_places: int, lam: float) -> tuple[Tensor, Tensor, Draw]:
    """Four images of ten positions, and a draw at the input that keeps some of them."""
    images, labels = torch.randn(4, 3, 2, 5), torch.tensor([3, 1, 4, 9])
    changed = torch.ones(10, dtype=torch.bool)
    changed[:kept_places] = False
    return images, labels, Draw("input", torch.tensor([1, 2, 3, 0]), Mix(changed.reshape(1, 1, 2, 5), lam))


Loss = Callable[[list[float], list[float]], float]


def expected_terms(output: Tensor, labels: Tensor, draw: Draw, sample_loss: Loss) -> tuple[float, float]:
    """L1 and L2 of eq. 6 as means over the batch, from the oracle."""
    own, lam = F.one_hot(labels, NUM_CLASSES).double().tolist(), draw.lam or None
    p_u = draw.kept.double().expand(len(labels)).tolist()
    firsts, seconds = [], []
    for i, j in enumerate(draw.partner.tolist()):
        logits = output[i].double().tolist()
        of_changed = sample_loss(logits, oracle.target_of_changed(own[i], own[j], lam))
        firsts.append(oracle.first_term(p_u[i], sample_loss(logits, own[i]), of_changed))
        seconds.append(sample_loss(logits, oracle.reweighted_target(own[i], own[j], p_u[i], lam)))
    return sum(firsts) / len(firsts), sum(seconds) / len(seconds)


def with_smoothing(sample_loss: Loss, smoothing: float) -> Loss:
    return lambda logits, target: sample_loss(logits, oracle.smoothed(target, smoothing))


AFFINE: dict[str, tuple[nn.Module | None, Loss]] = {
    "default": (None, oracle.cross_entropy),
    "cross_entropy": (nn.CrossEntropyLoss(), oracle.cross_entropy),
    "cross_entropy_smooth": (nn.CrossEntropyLoss(label_smoothing=0.1), with_smoothing(oracle.cross_entropy, 0.1)),
    "soft_target": (SoftTargetCrossEntropy(), oracle.cross_entropy),
    "label_smoothing": (LabelSmoothingCrossEntropy(0.1), with_smoothing(oracle.cross_entropy, 0.1)),
    "timm_bce": (BinaryCrossEntropy(smoothing=0.0), oracle.binary_cross_entropy),
    "timm_bce_smooth": (BinaryCrossEntropy(smoothing=0.1), with_smoothing(oracle.binary_cross_entropy, 0.1)),
    "torch_bce": (nn.BCEWithLogitsLoss(), oracle.binary_cross_entropy),
}


@pytest.mark.parametrize("lam", [0.0, 0.375])
@pytest.mark.parametrize("name", AFFINE)
def test_short_form_is_the_objective_if_the_criterion_is_affine(name: str, lam: float, model: nn.Module) -> None:
    criterion, sample_loss = AFFINE[name]
    images, labels, draw = by_hand(7, lam)
    output = torch.randn(4, NUM_CLASSES)
    first, second = expected_terms(output, labels, draw, sample_loss)
    assert first == pytest.approx(second, abs=1e-9)  # that is what affine means
    own = F.one_hot(labels, NUM_CLASSES).float()
    changed_target, mixed_target = mix_targets(own, draw.partner, kept=draw.kept, lam=lam)
    for objective, expected in (("l1", first), ("l2", second), ("paper", first + second)):
        mix = PatchUp(model, objective=objective)  # type: ignore[arg-type]
        _, target = mix(images, labels, draw=draw)
        assert mix.loss(output, target, criterion).item() == pytest.approx(expected, abs=2e-6)
        general = patchup_loss(
            output,
            target=own,
            changed_target=changed_target,
            mixed_target=mixed_target,
            kept=draw.kept,
            criterion=F.cross_entropy if criterion is None else for_soft_targets(criterion),
            objective=objective,  # type: ignore[arg-type]
        )
        assert general.item() == pytest.approx(expected, abs=2e-6)
        mix.detach()


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    return (output.softmax(1) - target).square().sum(1).mean()


def thresholded(logits: list[float], target: list[float]) -> float:
    return oracle.binary_cross_entropy(logits, [1.0 if t > 0.2 else 0.0 for t in target])


class HalvedCrossEntropy(nn.CrossEntropyLoss):
    """A subclass of an affine criterion that is not affine: it squares its target."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input, target.square())


def squared_target(logits: list[float], target: list[float]) -> float:
    return oracle.cross_entropy(logits, [t**2 for t in target])


NOT_AFFINE: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Loss]] = {
    "threshold": (BinaryCrossEntropy(smoothing=0.0, target_threshold=0.2), thresholded),
    "squared_error": (squared_error, oracle.squared_error),
    "subclass": (HalvedCrossEntropy(), squared_target),
}


@pytest.mark.parametrize("lam", [0.0, 0.375])
@pytest.mark.parametrize("name", NOT_AFFINE)
def test_general_form_is_the_objective_if_it_is_not(name: str, lam: float, model: nn.Module) -> None:
    criterion, sample_loss = NOT_AFFINE[name]
    images, labels, draw = by_hand(9, lam)  # W has 0.1 of the partner: below the threshold, while Y is above it
    output = torch.randn(4, NUM_CLASSES)
    first, second = expected_terms(output, labels, draw, sample_loss)
    assert not isclose(first, second, abs_tol=1e-3)
    for objective, expected in (("l1", first), ("l2", second), ("paper", first + second)):
        mix = PatchUp(model, objective=objective)  # type: ignore[arg-type]
        _, target = mix(images, labels, draw=draw)
        assert mix.loss(output, target, criterion).item() == pytest.approx(expected, abs=2e-6)
        mix.detach()


@pytest.mark.parametrize("objective", ["paper", "l1", "l2"])
def test_objective_with_a_mask_per_sample(objective: str, model: nn.Module, labels: Tensor) -> None:
    changed = torch.rand(4, 1, 2, 5) < torch.tensor([0.1, 0.4, 0.7, 0.9]).reshape(4, 1, 1, 1)
    kept = torch.tensor([oracle.portion_unchanged(holes) for holes in changed.flatten(1).tolist()])
    draw = Draw("input", torch.tensor([1, 2, 3, 0]), Mix(changed))
    torch.testing.assert_close(draw.kept, kept)
    mix = PatchUp(model, mask="sample", objective=objective)  # type: ignore[arg-type]
    output = torch.randn(4, NUM_CLASSES)
    _, target = mix(torch.randn(4, 3, 2, 5), labels, draw=draw)

    def each(output: Tensor, target: Tensor) -> Tensor:
        return (output.softmax(1) - target).square().sum(1)

    for criterion, sample_loss in ((None, oracle.cross_entropy), (each, oracle.squared_error)):
        first, second = expected_terms(output, labels, draw, sample_loss)
        expected = {"l1": first, "l2": second, "paper": first + second}[objective]
        assert mix.loss(output, target, criterion).mean().item() == pytest.approx(expected, abs=2e-6)


ANY = {name: AFFINE[name] for name in ("default", "label_smoothing", "timm_bce")} | NOT_AFFINE


@pytest.mark.parametrize("lam", [0.0, 0.375])
@pytest.mark.parametrize("name", ANY)
def test_the_authors_objective_has_the_own_label_in_l2_at_the_input(name: str, lam: float, model: nn.Module) -> None:
    criterion, sample_loss = ANY[name]
    images, labels, draw = by_hand(5, lam)
    output = torch.randn(4, NUM_CLASSES)
    first, second = expected_terms(output, labels, draw, sample_loss)
    own = F.one_hot(labels, NUM_CLASSES).double().tolist()
    clean = sum(sample_loss(one.double().tolist(), label) for one, label in zip(output, own)) / 4
    assert not isclose(second, clean, abs_tol=1e-3)
    mix = PatchUp(model, objective="authors")
    _, target = mix(images, labels, draw=draw)
    assert mix.loss(output, target, criterion).item() == pytest.approx(first + clean, abs=2e-6)


def test_the_authors_objective_is_the_papers_inside_the_model(model: nn.Module) -> None:
    losses, images, labels = [], torch.randn(4, 3, 32, 32), torch.tensor([3, 1, 4, 9])
    for objective in ("paper", "authors", "l2"):
        mix = PatchUp(model, objective=objective, prob=1.0, block_size=3, sites=["stem"])
        x, target = mix(images, labels)
        losses.append(mix.loss(model(x), target).item())
        mix.detach()
    assert losses[0] == losses[1] == 2 * losses[2]


# Targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing_is_timms(smoothing: float, model: nn.Module) -> None:
    images, labels, draw = by_hand(7, 0.0)
    draw = replace(draw, partner=torch.tensor([3, 2, 1, 0]))  # timm's partner: the batch reversed
    mix = PatchUp(model, label_smoothing=smoothing)
    _, target = mix(images, labels, draw=draw)
    torch.testing.assert_close(target, mixup_target(labels, NUM_CLASSES, lam=0.7, smoothing=smoothing))
    mix.mixup_enabled = False
    _, target = mix(images, labels)
    torch.testing.assert_close(target, mixup_target(labels, NUM_CLASSES, lam=1.0, smoothing=smoothing))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_soft_targets_may_be_given(dtype: torch.dtype, smoothing: float, model: nn.Module) -> None:
    images, labels, draw = by_hand(7, 0.375)
    mix = PatchUp(model, label_smoothing=smoothing)
    _, from_labels = mix(images, labels, draw=draw)
    given = F.one_hot(labels, NUM_CLASSES).to(dtype)
    before = given.clone()
    _, from_soft = mix(images, given, draw=draw)
    assert torch.equal(from_labels, from_soft)
    assert from_soft.dtype is torch.float32
    assert torch.equal(given, before)
    own = torch.rand(4, NUM_CLASSES).softmax(1)
    _, target = mix(images, own, draw=draw)
    rows = [oracle.smoothed(row, smoothing) for row in own.double().tolist()]
    for i, j in enumerate(draw.partner.tolist()):
        expected = oracle.reweighted_target(rows[i], rows[j], 0.7, 0.375)
        assert target[i].tolist() == pytest.approx(expected, abs=1e-6)


def test_labels_are_not_smoothed_twice(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["input"], label_smoothing=0.2)
    x, target = mix(images, labels)
    output = model(x)
    for criterion in (LabelSmoothingCrossEntropy(0.1), nn.CrossEntropyLoss(label_smoothing=0.1)):
        with pytest.raises(ValueError, match=r"label smoothing is set twice, in the mixer \(0.2\)"):
            mix.loss(output, target, criterion)
    assert mix.loss(output, target, LabelSmoothingCrossEntropy(0.0)).isfinite()


# Accuracy


def classifier() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).train()


@pytest.mark.parametrize(("altered", "right"), [(1, "own"), (3, "partner")])
def test_accuracy_counts_the_label_with_the_larger_share(altered: int, right: str) -> None:
    mix = create_mixer("cutmix", classifier(), num_classes=3)
    x, y, partner = torch.randn(3, 3, 2, 2), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
    mask = (torch.arange(4) < altered).reshape(1, 1, 2, 2)
    _, target = mix(x, y, draw=Draw("input", partner, Mix(mask)))
    own, other = F.one_hot(y, 3).float(), F.one_hot(y[partner], 3).float()
    for given in (target, y):  # the labels it was given stand for what became of them
        assert mix.accuracy(own, given).item() == (right == "own")
        assert mix.accuracy(other, given).item() == (right == "partner")
    two_of_three = torch.cat([own[:2], other[2:]]) if right == "own" else torch.cat([other[:2], own[2:]])
    found = mix.accuracy(two_of_three.bfloat16(), target)
    assert found.dtype is torch.float32
    assert found.item() == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match=r"^target must be what mix\(x, target\) returned, or the labels it was given"):
        mix.accuracy(own, y.clone())


def test_accuracy_adds_up_the_shares_of_one_label() -> None:
    """A sample whose partner has the same label is wholly of that label, whatever was altered."""
    mix = create_mixer("mixup", classifier(), num_classes=3, label_smoothing=0.1)
    x, y = torch.randn(2, 3, 2, 2), torch.tensor([2, 2])
    mix(x, y, draw=Draw("input", torch.tensor([1, 0]), Mix(torch.ones(1, 1, 1, 1) > 0, 0.5)))
    assert mix.accuracy(F.one_hot(y, 3).float(), y).item() == 1.0
