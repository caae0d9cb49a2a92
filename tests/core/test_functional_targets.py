"""Targets and the objective, against the oracle and by hand."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.support import oracle
from timm_patchup.core.functional import mix_targets, patchup_loss, smooth_target, soft_target

from .functional_cases import SEEDS


@given(
    seed=SEEDS,
    batch=st.integers(1, 5),
    classes=st.integers(1, 6),
    each=st.booleans(),
    lam=st.one_of(st.none(), st.floats(0, 1, allow_subnormal=False)),
)
def test_mix_targets_is_the_papers(seed: int, batch: int, classes: int, each: bool, lam: float | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = torch.rand(batch, classes, generator=generator, dtype=torch.float64)
    target = target / target.sum(1, keepdim=True)
    partner = torch.randperm(batch, generator=generator)
    kept = torch.rand(batch if each else (), generator=generator, dtype=torch.float64)
    before = target.clone(), kept.clone()
    changed_target, mixed_target = mix_targets(target, partner, kept=kept, lam=lam or 0.0)
    rows, p_u = target.tolist(), kept.expand(batch).tolist()
    soft = lam if lam else None
    for i, j in enumerate(partner.tolist()):
        assert changed_target[i].tolist() == pytest.approx(oracle.target_of_changed(rows[i], rows[j], soft), abs=1e-12)
        expected = oracle.reweighted_target(rows[i], rows[j], p_u[i], soft)
        assert mixed_target[i].tolist() == pytest.approx(expected, abs=1e-12)
    assert (mixed_target >= 0).all()
    assert mixed_target.sum(1).tolist() == pytest.approx([1.0] * batch)
    assert torch.equal(target, before[0])
    assert torch.equal(kept, before[1])


def test_mix_targets_by_hand() -> None:
    target = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    partner = torch.tensor([1, 0])
    changed_target, mixed_target = mix_targets(target, partner, kept=torch.tensor(0.75))
    assert changed_target.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert mixed_target.tolist() == [[0.75, 0.25, 0], [0.25, 0.75, 0]]
    # Soft, lam 0.5: Y is half and half, and W = 0.75 * y + 0.25 * Y = 0.875 and 0.125.
    changed_target, mixed_target = mix_targets(target, partner, kept=torch.tensor(0.75), lam=0.5)
    assert changed_target.tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0]]
    assert mixed_target.tolist() == [[0.875, 0.125, 0], [0.125, 0.875, 0]]
    _, each = mix_targets(target, partner, kept=torch.tensor([1.0, 0.25]))
    assert each.tolist() == [[1, 0, 0], [0.75, 0.25, 0]]


def squared(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of the softmax, in torch: the oracle's ``squared_error`` over a batch."""
    return (output.softmax(1) - target).square().sum(1).mean()


@given(seed=SEEDS, batch=st.integers(1, 5), lam=st.one_of(st.none(), st.floats(0.01, 1)))
def test_loss_is_the_papers(seed: int, batch: int, lam: float | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    output = torch.randn(batch, 4, generator=generator, dtype=torch.float64)
    target = F.one_hot(torch.randint(4, (batch,), generator=generator), 4).double()
    partner = torch.randperm(batch, generator=generator)
    kept = torch.rand((), generator=generator, dtype=torch.float64)
    changed_target, mixed_target = mix_targets(target, partner, kept=kept, lam=lam or 0.0)
    p_u = kept.item()
    firsts, seconds = [], []
    for i, j in enumerate(partner.tolist()):
        logits, y_i, y_j = output[i].tolist(), target[i].tolist(), target[j].tolist()
        of_own = oracle.squared_error(logits, y_i)
        of_changed = oracle.squared_error(logits, oracle.target_of_changed(y_i, y_j, lam))
        firsts.append(oracle.first_term(p_u, of_own, of_changed))
        seconds.append(oracle.squared_error(logits, oracle.reweighted_target(y_i, y_j, p_u, lam)))
    first, second = sum(firsts) / batch, sum(seconds) / batch
    for objective, expected in (("l1", first), ("l2", second), ("paper", first + second)):
        loss = patchup_loss(
            output,
            target=target,
            changed_target=changed_target,
            mixed_target=mixed_target,
            kept=kept,
            criterion=squared,
            objective=objective,  # type: ignore[arg-type]
        )
        assert loss.item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("objective", "expected"), [("l1", 0.5), ("l2", 0.125), ("paper", 0.625)])
def test_loss_by_hand(objective: str, expected: float) -> None:
    # l is the squared distance. The output is y: l(out, y) = 0 and l(out, Y) = 2. With p_u = 0.75 the first term is
    # 0.25 * 2 = 0.5, W = (0.75, 0.25) and the second 2 * 0.25**2 = 0.125.
    loss = patchup_loss(
        torch.tensor([[1.0, 0.0]]),
        target=torch.tensor([[1.0, 0.0]]),
        changed_target=torch.tensor([[0.0, 1.0]]),
        mixed_target=torch.tensor([[0.75, 0.25]]),
        kept=torch.tensor(0.75),
        criterion=lambda output, target: (output - target).square().sum(1).mean(),
        objective=objective,  # type: ignore[arg-type]
    )
    assert loss.item() == pytest.approx(expected)


@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=6), smoothing=st.floats(0, 0.99, allow_subnormal=False))
def test_soft_target_is_smoothed_one_hot(labels: list[int], smoothing: float) -> None:
    soft = soft_target(torch.tensor(labels), 6, label_smoothing=smoothing)
    assert soft.dtype is torch.float32
    for row, label in zip(soft.tolist(), labels):
        own = [1.0 if k == label else 0.0 for k in range(6)]
        assert row == pytest.approx(oracle.smoothed(own, smoothing), abs=1e-6)


def test_smooth_target_by_hand() -> None:
    # 0.8 * (1, 0, 0, 0) + 0.2 / 4
    assert smooth_target(torch.tensor([[1.0, 0, 0, 0]]), 0.2)[0].tolist() == pytest.approx([0.85, 0.05, 0.05, 0.05])
    assert soft_target(torch.tensor([[0.5, 0.5]], dtype=torch.bfloat16), 2).dtype is torch.float32
