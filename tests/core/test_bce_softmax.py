"""How much smaller the gradients of BCE on softmax are than cross-entropy's, as in recipes/protocols."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from timm_patchup.core.loss import bce_softmax, cross_entropy

CLASSES = (10, 100, 200)


def factors(logits: Tensor) -> Tensor:
    """Return the ratio of the norms of both gradients of the logits for label 0, per sample."""
    found = []
    for row in logits.double():
        own = row[None].clone().requires_grad_()
        target = F.one_hot(torch.tensor([0]), len(row)).double()
        grads = [torch.autograd.grad(loss(own, target), own)[0].norm() for loss in (cross_entropy, bce_softmax)]
        found.append(grads[0] / grads[1])
    return torch.stack(found)


def with_label(p: float, others: Tensor) -> Tensor:
    """Return logits (B, K) whose first class has probability p; others are the logits of the rest."""
    rest = others.double().log_softmax(1) + torch.tensor(1.0 - p).double().log()
    return torch.cat([torch.full((len(others), 1), p).double().log(), rest], dim=1)


@pytest.mark.parametrize("classes", CLASSES)
def test_bounds(classes: int) -> None:
    for std in (0.1, 1.0, 3.0):  # with far larger logits torch cuts the logarithms of BCE off
        found = factors(std * torch.randn(50, classes))
        assert float(found.min()) > classes / 2 * 0.999
        assert float(found.max()) < classes * 1.001


@pytest.mark.parametrize("classes", CLASSES)
def test_even_probabilities_one_rival_and_a_confident_net(classes: int) -> None:
    assert float(factors(torch.zeros(1, classes))) == pytest.approx(classes - 1, rel=1e-4)
    rivals = torch.full((1, classes - 1), -60.0)
    rivals[0, 0] = 0.0
    for p in (0.2, 0.5, 0.9):
        assert float(factors(with_label(p, rivals))) == pytest.approx(classes / 2, rel=1e-3)
    even = torch.zeros(1, classes - 1)
    stated = {10: 5.2, 100: 52.6, 200: 105.2}[classes]
    assert float(factors(with_label(0.9, even))) == pytest.approx(stated, abs=0.06)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.7, 0.9])
def test_about_k_over_one_plus_p_if_many_share_the_rest(p: float, classes: int) -> None:
    found = factors(with_label(p, 0.5 * torch.randn(20, classes - 1)))
    assert (found / (classes / (1 + p)) - 1.0).abs().max() < 0.06 + 0.5 / classes


def test_gradient_by_hand() -> None:
    """d/dz of -(1/K) [log p_0 + sum over the others of log(1 - p_j)], written out for three classes."""
    p = torch.tensor([0.5, 0.3, 0.2])
    logits = p.log()[None].requires_grad_()
    (grad,) = torch.autograd.grad(bce_softmax(logits, torch.tensor([[1.0, 0.0, 0.0]])), logits)
    inner = [-1 / 0.5, 1 / 0.7, 1 / 0.8]  # K times the derivatives of the loss by p
    mean = 0.5 * inner[0] + 0.3 * inner[1] + 0.2 * inner[2]
    assert grad[0].tolist() == pytest.approx([float(q) * (d - mean) / 3 for q, d in zip(p, inner)], abs=1e-6)
