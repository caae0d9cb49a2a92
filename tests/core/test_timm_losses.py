"""Every loss of the installed timm: it has the short form, the general form or is refused, never a wrong form.

The one that compares augmentation splits is tested in ``test_splits.py``.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator

import pytest
import timm
import timm.loss
import torch
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy, JsdCrossEntropy
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from timm_patchup import Draw, MixTask, PatchUp
from timm_patchup.core.draw import Mix
from timm_patchup.core.functional import mix_targets
from timm_patchup.core.loss import for_soft_targets, is_affine, takes_indices

KINDS = [kind for kind in vars(timm.loss).values() if isinstance(kind, type) and issubclass(kind, nn.Module)]
# What some losses cannot be made without.
_COUNTS = {"class_counts": list(range(1, NUM_CLASSES + 1)), "num_samples": 20}
_NEEDED = {"jsd": {"jsd_splits": 2}, "db": _COUNTS}


def _offered() -> Iterator[tuple[str, bool, nn.Module]]:
    """Yield a name, whether the labels are dense, and the loss, for all that timm's factory makes."""
    if not hasattr(timm.loss, "create_classification_loss"):  # before 1.0.31
        for kind in KINDS:
            if kind.__name__ != "SoftTargetCrossEntropy":  # takes no labels, neither does the factory make it for them
                yield kind.__name__, "MultiLabel" in kind.__name__, kind()
        return
    for name in timm.loss.LOSS_TYPES:
        for multi_label in (False, True):
            for smoothing in (0.0, 0.1):
                arguments = {"multi_label": multi_label, "smoothing": smoothing, **_NEEDED.get(name, {})}
                try:
                    loss = timm.loss.create_classification_loss(name, **arguments)
                except ValueError:
                    continue  # timm has no such loss
                yield f"{name}-{'dense' if multi_label else 'index'}-{smoothing}", multi_label, loss


OFFERED = {name: (multi_label, loss) for name, multi_label, loss in _offered()}
_INDICES_ONLY = ("AsymmetricLossSingleLabel",)


def test_all_losses_are_found() -> None:
    assert len(KINDS) >= 6
    made = {type(loss) for _, loss in OFFERED.values()}
    # The factory makes this one for targets that are soft already.
    assert {kind.__name__ for kind in KINDS if kind not in made} <= {"SoftTargetCrossEntropy"}


def _refused(name: str) -> bool:
    return type(OFFERED[name][1]).__name__ in _INDICES_ONLY


MIXABLE = [name for name in OFFERED if not _refused(name) and not isinstance(OFFERED[name][1], JsdCrossEntropy)]


@pytest.mark.parametrize("name", [name for name in OFFERED if _refused(name)])
def test_losses_of_class_indices_are_refused_with_the_reason(name: str, model: nn.Module) -> None:
    _, criterion = OFFERED[name]
    kind = type(criterion).__name__
    message = f"^{kind} takes class indices only, .* cannot be used with mixing$"
    with pytest.raises(TypeError, match=message):
        MixTask(model, criterion, mixer=PatchUp(model), verbose=False)


def _targets(multi_label: bool) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    if multi_label:
        return (torch.rand(4, NUM_CLASSES, generator=generator) < 0.4).float()
    return torch.tensor([3, 1, 4, 9])


def _replayed(lam: float) -> tuple[Tensor, Draw]:
    changed = torch.zeros(1, 1, 2, 5, dtype=torch.bool)
    changed[..., :3] = True
    return torch.randn(4, 3, 2, 5), Draw("input", torch.tensor([1, 2, 3, 0]), Mix(changed, lam))


def _smoothed(criterion: nn.Module, target: Tensor) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor]:
    """Return timm's loss of dense targets, and class indices as the loss smooths them: ``(1 - s) * y + s / K``."""
    if target.ndim == 2:
        return criterion, target
    smoothing = getattr(criterion, "smoothing", 0.0)
    own = F.one_hot(target, NUM_CLASSES).float() * (1.0 - smoothing) + smoothing / NUM_CLASSES
    if type(criterion).__name__ == "LabelSmoothingCrossEntropy":
        return F.cross_entropy, own
    return criterion, own


@pytest.mark.parametrize("lam", [0.0, 0.375])
@pytest.mark.parametrize("name", MIXABLE)
def test_objective_is_the_papers(name: str, lam: float, model: nn.Module) -> None:
    """L1 + L2 of mixed targets, evaluated term by term with timm's own loss."""
    multi_label, criterion = OFFERED[name]
    given = _targets(multi_label)
    dense_loss, own = _smoothed(criterion, given)
    images, draw = _replayed(lam)
    changed, mixed = mix_targets(own, draw.partner, kept=draw.kept, lam=lam)
    output = torch.randn(4, NUM_CLASSES)
    terms = [draw.kept * dense_loss(output, own) + (1.0 - draw.kept) * dense_loss(output, changed)]
    terms.append(dense_loss(output, mixed))
    mix = PatchUp(model)
    _, target = mix(images, given, draw=draw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(mix.loss(output, target, criterion), sum(terms))


@pytest.mark.parametrize("name", MIXABLE)
def test_batch_left_alone_has_timms_loss(name: str, model: nn.Module) -> None:
    multi_label, criterion = OFFERED[name]
    given, output = _targets(multi_label), torch.randn(4, NUM_CLASSES)
    mix = PatchUp(model, prob=0.0)
    _, target = mix(torch.randn(4, 3, 8, 8), given)
    assert torch.equal(mix.loss(output, target, criterion), criterion(output, given))
    # What a mixed batch is given, at the corner where nothing is mixed.
    soft = for_soft_targets(criterion, from_indices=not multi_label)
    torch.testing.assert_close(soft(output, target), criterion(output, given))


def _is_affine_in_numbers(criterion: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Whether the loss of a mixture of targets is the mixture of their losses, for many of each."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        output = 3.0 * torch.randn(4, NUM_CLASSES, generator=generator, dtype=torch.float64)
        one, other = torch.rand(2, 4, NUM_CLASSES, generator=generator, dtype=torch.float64).softmax(-1)
        share = torch.rand((), generator=generator, dtype=torch.float64)
        mixed = criterion(output, share * one + (1.0 - share) * other)
        apart = share * criterion(output, one) + (1.0 - share) * criterion(output, other)
        if not torch.allclose(mixed.double(), apart.double(), rtol=1e-5, atol=1e-6):
            return False
    return True


@pytest.mark.parametrize("name", MIXABLE)
def test_short_form_is_for_affine_losses_only(name: str) -> None:
    multi_label, criterion = OFFERED[name]
    if is_affine(criterion):
        assert _is_affine_in_numbers(for_soft_targets(criterion, from_indices=not multi_label))


def test_the_check_can_fail() -> None:
    assert _is_affine_in_numbers(nn.CrossEntropyLoss())
    assert not _is_affine_in_numbers(lambda output, target: (output.softmax(1) - target).square().mean())
    assert sum(is_affine(OFFERED[name][1]) for name in MIXABLE) >= 2
    assert not is_affine(BinaryCrossEntropy(target_threshold=0.2))


class NewLoss(nn.Module):
    """A loss that next month's timm may have: nothing is known of it."""

    __module__ = "timm.loss.new"

    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.softmax(1) - target).square().sum(1).mean()


def test_an_unknown_loss_has_the_general_form(model: nn.Module) -> None:
    criterion = NewLoss()
    assert not is_affine(criterion)
    assert not takes_indices(criterion)
    images, draw = _replayed(0.0)
    given, output = _targets(False), torch.randn(4, NUM_CLASSES)
    own = F.one_hot(given, NUM_CLASSES).float()
    changed, mixed = mix_targets(own, draw.partner, kept=draw.kept)
    mix = PatchUp(model)
    _, target = mix(images, given, draw=draw)
    first = draw.kept * criterion(output, own) + (1.0 - draw.kept) * criterion(output, changed)
    torch.testing.assert_close(mix.loss(output, target, criterion), first + criterion(output, mixed))
    assert not torch.isclose(first, criterion(output, mixed)), "the short form would be wrong"


def test_smoothing_of_an_unknown_loss_is_not_guessed(model: nn.Module) -> None:
    message = r"^how NewLoss smooths mixed targets is not known: .* label_smoothing=0.1 to the mixer$"
    with pytest.raises(TypeError, match=message):
        MixTask(model, NewLoss(0.1), mixer=PatchUp(model), verbose=False)


@pytest.mark.skipif("smooth_dense" not in inspect.signature(BinaryCrossEntropy).parameters, reason="timm before 1.0.31")
def test_class_indices_are_smoothed_once_by_a_loss_that_smooths_dense_labels() -> None:
    criterion = BinaryCrossEntropy(smoothing=0.2, smooth_dense=True)
    labels, output = _targets(False), torch.randn(4, NUM_CLASSES)
    soft = for_soft_targets(criterion)(output, F.one_hot(labels, NUM_CLASSES).float())
    torch.testing.assert_close(soft, criterion(output, labels))
    assert criterion.smoothing == 0.2


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("objective", ["paper", "l1"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.__name__ in ("TwoWayLoss", "ZlprLoss")])
def test_rounded_labels_are_said(kind: type[nn.Module], mode: str, objective: str, model: nn.Module) -> None:
    mix = PatchUp(model, mode=mode, prob=1.0, sites=["stage1"], gamma=0.3, objective=objective)  # type: ignore[arg-type]
    x, target = mix(torch.randn(4, 3, 64, 64), _targets(True))
    output = model(x)
    if mode == "hard" and objective == "l1":
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mix.loss(output, target, kind())
    else:
        with pytest.warns(UserWarning, match=f"^{kind.__name__} rounds mixed labels to 0 and 1; hard PatchUp"):
            mix.loss(output, target, kind())
