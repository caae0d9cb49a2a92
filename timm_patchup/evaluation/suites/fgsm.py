"""Accuracy against the fast gradient sign method (the paper's figures 5 and 13): x' = x + eps * sign(dJ/dx).

x' is clipped to [0, 1]. In normalised space eps is in units of each channel's standard deviation, as in the authors'
code.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...report.charts import lines
from ...report.figures import Figure, panels
from ...report.numbers import Metric
from ..context import EvalContext, Measurement
from ..rows import ResultRow
from ..suite import Suite, choice

EPSILONS = (0.0, 0.05, 0.1, 0.12, 0.15, 0.18, 0.2)


def settings(context: EvalContext) -> dict[str, Any]:
    space = context.options["eps_space"]
    unit = "of the range [0, 1] of pixels" if space == "pixels" else "of each channel's standard deviation"
    return {"epsilons": list(EPSILONS), "eps_space": space, "eps_unit": unit, "clipped": "to [0, 1]"}


def measure(context: EvalContext) -> Measurement:
    """Return the accuracy per eps; all of them use the same gradient."""
    classifier = context.model.classifier
    space = context.options["eps_space"]
    scale = classifier.std if space == "normalised" else torch.ones_like(classifier.std)
    sums = torch.zeros(len(EPSILONS) + 1, dtype=torch.float64)
    for images, labels, _ in context.batches(f"fgsm, eps in {space}"):
        direction = gradient_sign(classifier, images, labels) * scale
        with torch.inference_mode():
            correct = [(context.logits(step(images, direction, eps)).argmax(1) == labels).sum() for eps in EPSILONS]
        sums += torch.tensor([*map(int, correct), len(labels)])
    *correct_counts, count = context.total(sums).tolist()
    accuracy = [100.0 * correct / count for correct in correct_counts]
    return Measurement({f"{eps:g}": value for eps, value in zip(EPSILONS, accuracy)}, count=int(count))


def gradient_sign(classifier: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the sign of the gradient of each sample's cross-entropy with respect to its image."""
    images = images.detach().clone().requires_grad_()
    loss = F.cross_entropy(classifier(images), labels, reduction="sum")
    return torch.autograd.grad(loss, images)[0].sign()


def step(images: Tensor, direction: Tensor, eps: float) -> Tensor:
    return images if eps == 0 else (images + eps * direction).clamp(0.0, 1.0)


def figure(rows: Sequence[ResultRow]) -> Figure:
    """Plot the accuracy over eps."""
    chart, (axes,) = panels(width=9, height=4.5)
    lines(axes, rows, {f"{eps:g}": eps for eps in EPSILONS}, spread=lambda value: value.std)
    spaces = sorted({entry["settings"]["eps_space"] for row in rows for entry in row.entries.values()})
    axes.set_xlabel(f"eps ({', '.join(spaces)})")
    axes.set_ylabel("accuracy, %")
    axes.set_ylim(bottom=0)
    axes.grid(True)
    axes.legend(fontsize="small")
    return chart


SUITE = Suite(
    name="fgsm",
    title="FGSM",
    unit="accuracy, %, at each eps",
    measure=measure,
    settings=settings,
    is_current=lambda stored, options: stored.get("eps_space") == options["eps_space"],
    values=tuple(f"{eps:g}" for eps in EPSILONS),
    metrics=(Metric("fgsm_accuracy", "%", higher_is_better=True, lines="eps"),),
    figure=figure,
    options=(
        choice(
            "eps_space",
            "space of eps (default: pixels; in studies normalised, as in the authors' code)",
            ("pixels", "normalised"),
            in_study=True,
            study_default="normalised",
            label=str,
        ),
    ),
)
