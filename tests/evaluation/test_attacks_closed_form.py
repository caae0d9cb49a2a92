"""FGSM and the attacks of foolbox on linear classifiers, for which the smallest perturbation has a closed form.

For logits f the nearest other class k is at (f_y - f_k) / |w_y - w_k| in L2. With two classes, a perturbation within
eps in L-infinity changes f_y - f_k by at most eps times the L1 norm of w_y - w_k, and its signs reach that. The images
are grey enough for no perturbation to meet black or white.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from timm_patchup.evaluation.context import EvalContext
from timm_patchup.evaluation.images import TestImages
from timm_patchup.evaluation.suites import attacks, fgsm
from timm_patchup.evaluation.suites.corrupted_files import ArraySource

from .evaluating import make_context, trained, with_options

COUNT, WRONG = 200, 20
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]


def linear_context(classes: int, *, images_used: int = COUNT, **options: object) -> tuple[EvalContext, Tensor, Tensor]:
    """Return a context with a linear classifier of five inputs, its weights for pixels, and the logits.

    All answers are right except for the first ``WRONG`` images.
    """
    context = make_context(trained(), limit=20, batch_size=70)
    size = context.images.spec.input_size
    rng = np.random.default_rng(classes)
    pixels = rng.integers(90, 166, (COUNT, *size[1:], size[0]), dtype=np.uint8)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).double() / 255
    weights = torch.zeros(classes, images[0].numel())
    chosen = torch.from_numpy(rng.choice(images[0].numel(), 5, replace=False))
    weights[:, chosen] = torch.from_numpy(rng.normal(size=(classes, 5))).float()
    layer = nn.Linear(images[0].numel(), classes)
    network = nn.Sequential(nn.Flatten(), layer).eval()
    with torch.no_grad():
        layer.weight.copy_(weights)
        middle = (0.5 - torch.tensor(MEAN)) / torch.tensor(STD)
        layer.bias.copy_(-(weights.view(classes, size[0], -1).sum(2) @ middle))  # even chances at grey
    classifier = type(context.model.classifier)(network, MEAN, STD)
    per_pixel = (weights.view(classes, size[0], -1) / torch.tensor(STD)[:, None]).flatten(1).double()
    logits = (images.flatten(1) - 0.5) @ per_pixel.T
    labels = logits.argmax(1)
    labels[:WRONG] = (labels[:WRONG] + 1) % classes
    source, rows = ArraySource(pixels, labels.numpy()), np.arange(images_used)
    own = TestImages(source, rows, context.images.data, context.images.spec, batch_size=70)
    linear = replace(context, model=replace(context.model, classifier=classifier), images=own)
    return with_options(linear, **options), per_pixel, logits


def distances(weights: Tensor, logits: Tensor) -> Tensor:
    """Return the L2 distance to the nearest other class of the images that are right, written as a loop."""
    found = []
    for row in logits[WRONG:]:
        y = int(row.argmax())
        others = [k for k in range(len(row)) if k != y]
        found.append(min(float((row[y] - row[k]) / (weights[y] - weights[k]).norm()) for k in others))
    return torch.tensor(found)


def share_right(resists: Tensor) -> float:
    return 100.0 * int(resists.sum()) / COUNT


def test_the_linear_classifier_is_what_the_suite_sees() -> None:
    context, _, logits = linear_context(4)
    images, labels, _ = next(iter(context.batches("")))
    torch.testing.assert_close(context.logits(images).double(), logits[:70], rtol=1e-3, atol=1e-4)
    assert int((logits[:70].argmax(1) == labels).sum()) == 70 - WRONG


@pytest.mark.parametrize("space", ["pixels", "normalised"])
def test_fgsm(space: str) -> None:
    context, weights, logits = linear_context(2, eps_space=space)
    size = context.images.spec.input_size
    scale = torch.ones(size[0]) if space == "pixels" else torch.tensor(STD)
    reach = (weights[0] - weights[1]).view(size[0], -1).abs().sum(1) @ scale.double()
    margin = (logits[:, 0] - logits[:, 1]).abs()[WRONG:]
    expected = {f"{eps:g}": share_right(margin > eps * reach) for eps in fgsm.EPSILONS}
    assert len(set(expected.values())) >= 4
    assert fgsm.measure(context).values == pytest.approx(expected, abs=1e-9)


def test_pgd_reaches_the_corner_of_the_box() -> None:
    # Nine steps of a quarter of the radius cross the box from any start.
    context, weights, logits = linear_context(2, attack_steps=9)
    margin = (logits[:, 0] - logits[:, 1]).abs()[WRONG:]
    expected = share_right(margin > attacks.RADIUS * (weights[0] - weights[1]).abs().sum())
    assert 10 < expected < 80
    assert attacks.measure(context).values["pgd accuracy"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
def test_minimising_attacks(classes: int) -> None:
    context, weights, logits = linear_context(classes)
    nearest = distances(weights, logits)
    accuracy = share_right(nearest > attacks.RADIUS)
    assert 20 < accuracy < 88
    measured = attacks.measure(context).values
    assert measured["deepfool accuracy"] == pytest.approx(accuracy, abs=1e-9)
    # DeepFool is exact in one step, but for its overshoot of 2% and 1e-4 against division by zero.
    assert measured["deepfool median distance"] == pytest.approx(1.02 * (float(nearest.quantile(0.5)) + 1e-4), rel=5e-3)
    if classes == 2:  # one direction only: cut to the radius, what DDN finds is the shortest way
        assert measured["ddn accuracy"] == pytest.approx(accuracy, abs=1e-9)
    for name in ("ddn", "carlini_wagner"):
        assert measured[f"{name} accuracy"] >= accuracy - 1e-9, "nothing is nearer than the closed form"


def test_with_many_steps_all_three_find_the_nearest_class() -> None:
    context, weights, logits = linear_context(2, images_used=WRONG + 30, attack_steps=80)
    median = float(distances(weights, logits)[:30].quantile(0.5))
    measured = attacks.measure(context).values
    assert 1.0 <= measured["ddn median distance"] / median < 1.06, "its radius moves in steps of 5%"  # type: ignore[operator]
    assert 0.999 <= measured["carlini_wagner median distance"] / median < 1.1  # type: ignore[operator]
