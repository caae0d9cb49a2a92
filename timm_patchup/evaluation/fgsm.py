"""Accuracy against the fast gradient sign method (the paper's figures 5 and 13): x' = x + eps * sign(dJ/dx).

Images stay images: x' is cut to [0, 1]. In normalised space eps is in units of each channel's standard deviation, as
in the authors' code.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .bench import Bench, Measured

EPSILONS = (0.0, 0.05, 0.1, 0.12, 0.15, 0.18, 0.2)


def settings(bench: Bench) -> dict[str, Any]:
    space = bench.options.eps_space
    unit = "of the range [0, 1] of pixels" if space == "pixels" else "of each channel's standard deviation"
    return {"epsilons": list(EPSILONS), "eps_space": space, "eps_unit": unit, "clipped": "to [0, 1]"}


def measure(bench: Bench) -> Measured:
    """Return the accuracy at each eps; one gradient a sample serves them all."""
    classifier = bench.subject.classifier
    scale = classifier.std if bench.options.eps_space == "normalised" else torch.ones_like(classifier.std)
    sums = torch.zeros(len(EPSILONS) + 1, dtype=torch.float64)
    for images, labels, _ in bench.batches(f"fgsm, eps in {bench.options.eps_space}"):
        direction = gradient_sign(classifier, images, labels) * scale
        with torch.inference_mode():
            right = [(bench.logits(step(images, direction, eps)).argmax(1) == labels).sum() for eps in EPSILONS]
        sums += torch.tensor([*map(int, right), len(labels)])
    *right_counts, count = bench.total(sums).tolist()
    accuracy = [100.0 * right / count for right in right_counts]
    return Measured({f"{eps:g}": value for eps, value in zip(EPSILONS, accuracy)}, count=int(count))


def gradient_sign(classifier: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the sign of the gradient of every sample's cross-entropy by its image."""
    images = images.detach().clone().requires_grad_()
    loss = F.cross_entropy(classifier(images), labels, reduction="sum")
    return torch.autograd.grad(loss, images)[0].sign()


def step(images: Tensor, direction: Tensor, eps: float) -> Tensor:
    return images if eps == 0 else (images + eps * direction).clamp(0.0, 1.0)
