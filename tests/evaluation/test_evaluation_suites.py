"""The suites clean, affine, fgsm, activations and geometry against slow direct computations."""

from collections.abc import Callable
from dataclasses import replace
from math import acos, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision.transforms import RandomAffine

from timm_patchup.errors import UserError
from timm_patchup.evaluation.context import EvalContext, Measurement
from timm_patchup.evaluation.images import TestImages
from timm_patchup.evaluation.results import Results
from timm_patchup.evaluation.rows import ResultRow
from timm_patchup.evaluation.suites import SUITES, activations, affine, clean, fgsm, geometry
from timm_patchup.evaluation.suites.corrupted_files import ArraySource
from timm_patchup.runs.folder import RunFolder

from .evaluating import LIMIT, make_context, trained, with_options


@pytest.fixture(scope="module")
def context() -> EvalContext:
    return make_context(trained())


def everything(context: EvalContext) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    return context.images.spread(len(context.images))  # type: ignore[return-value]


def test_clean_is_what_training_measured(context: EvalContext) -> None:
    measured, stored = clean.measure(context), RunFolder(trained()).results()["test"]
    assert measured.count == stored["count"] == LIMIT
    assert measured.values["error"] == pytest.approx(stored["error"], abs=1e-9)
    assert measured.values["top5_error"] == pytest.approx(100 - stored["top5"], abs=1e-9)
    assert measured.values["nll"] == pytest.approx(stored["loss"], rel=1e-5)
    assert 20 < 100 - stored["error"] < 95, "a model at chance or without errors would not test anything"


def test_calibration_error_by_a_slow_loop(context: EvalContext) -> None:
    images, labels, _ = everything(context)
    with torch.no_grad():
        probabilities = context.model.classifier(images).double().softmax(1)
    total = 0.0
    for low in range(clean.BINS):
        inside = []
        for p, label in zip(probabilities.tolist(), labels.tolist()):
            if low / clean.BINS < max(p) <= (low + 1) / clean.BINS:
                inside.append((float(p.index(max(p)) == label), max(p)))
        if inside:
            total += abs(sum(right for right, _ in inside) - sum(confidence for _, confidence in inside))
    assert clean.measure(context).values["ece"] == pytest.approx(100 * total / len(labels), abs=1e-6)


def test_calibration_error_of_a_case_by_hand() -> None:
    # Two samples at confidence .9, one right: |1 - 1.8|; one at 1.0, right: 0. Over three samples: .8 / 3.
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.0, 1.0]], dtype=torch.float64)
    bins = clean.calibration_bins(probabilities, torch.tensor([0, 1, 1]))
    assert clean.calibration_error(bins) == pytest.approx(0.8 / 3)
    assert bins[0, -1] == 1
    assert bins[0, 13] == 2


def test_batch_size_changes_nothing(context: EvalContext) -> None:
    odd = make_context(trained(), batch_size=37)
    assert affine.measure(odd).values == affine.measure(context).values
    assert odd.images.batch_size == 37


def test_a_deformation_does_not_depend_on_the_limit(context: EvalContext) -> None:
    few, _, few_rows = everything(make_context(trained(), limit=60))
    many, _, many_rows = everything(context)
    shared = [row for row in few_rows if row in many_rows]
    assert len(shared) > 30
    for row in shared[:5]:
        one, other = (images[rows.index(row)][None] for images, rows in ((few, few_rows), (many, many_rows)))
        assert torch.equal(one, other), "the row identifies the sample"
    deformation = affine.DEFORMATIONS[0]
    one, other = (affine.deform(deformation, x, r, seed=0) for x, r in ((few, few_rows), (many, many_rows)))
    place = few_rows.index(shared[3])
    assert torch.allclose(one[place], other[many_rows.index(shared[3])], atol=1e-6)


@pytest.mark.parametrize("deformation", affine.DEFORMATIONS, ids=lambda deformation: deformation.name)
def test_deformed_images_are_those_of_random_affine(deformation: affine.Deformation) -> None:
    """Pixel for pixel what torchvision's RandomAffine, which made the authors' test sets, makes of a stored image."""
    pixels = np.random.default_rng(0).integers(1, 256, (8, 32, 32, 3), dtype=np.uint8)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    rows = list(range(8))
    deformed = (affine.deform(deformation, images, rows, seed=5) * 255).round().byte()
    amounts = [deformation.amount] * 8
    if deformation.kind != "scale":
        amounts = affine.angles(deformation, rows, seed=5)
        assert len({round(amount, 6) for amount in amounts}) == 8
    differing = 0
    for image, stored, amount in zip(deformed, pixels, amounts):
        ranges = {"rotate": {"degrees": (amount, amount)}, "shear": {"degrees": 0, "shear": (amount, amount)}}
        same = RandomAffine(**ranges.get(deformation.kind, {"degrees": 0, "scale": (amount, amount)}))
        assert torch.equal(image, same(torch.from_numpy(stored).permute(2, 0, 1)))
        with_pillow = torch.from_numpy(np.array(same(Image.fromarray(stored)))).permute(2, 0, 1)
        differing += int((image != with_pillow).any(0).sum())
    # Pillow computes positions in 16-bit fixed point, which takes the neighbour for about one pixel in 7,000.
    assert differing <= (0 if deformation.kind == "scale" else 40), "of 8,192 pixels"


def test_a_scale_below_one_shrinks_the_image() -> None:
    image = torch.ones(1, 1, 40, 40)
    area = {s: float(affine.deform(affine.Deformation("scale", s), image, [0], seed=0).sum()) for s in (0.5, 1.0, 1.4)}
    assert area == {0.5: 20 * 20, 1.0: 40 * 40, 1.4: 40 * 40}


def test_results_with_the_reversed_scale_are_not_reused(context: EvalContext, tmp_path: Path) -> None:
    """Until 0.6 shrank the image, results.json recorded the opposite direction."""
    now, results = affine.settings(context), Results(tmp_path, {})
    before = now | {"scale": "the view is so many times the image; below 1 zooms in"}
    results.add("affine", context.model, Measurement({"scale 0.6": 50.0}), seed=0, settings=before)
    assert results.has("affine", context.model, seed=0, settings=before)
    assert not results.has("affine", context.model, seed=0, settings=now)


def test_angles_depend_on_seed_and_sample_only() -> None:
    deformation = affine.DEFORMATIONS[1]
    rows = list(range(2000))
    degrees = np.array(affine.angles(deformation, rows, seed=0))
    assert degrees[[5, 900]].tolist() == affine.angles(deformation, [5, 900], seed=0)
    assert degrees.tolist() != affine.angles(deformation, rows, seed=1)
    assert not np.allclose(degrees / 2, affine.angles(affine.DEFORMATIONS[0], rows, seed=0))
    assert abs(degrees).max() <= 40
    # Uniform: 500 per quarter; 116 is six standard deviations of the binomial.
    quarters = np.histogram(degrees, bins=4, range=(-40, 40))[0]
    assert abs(quarters - 500).max() < 116


def test_fgsm_by_hand(context: EvalContext) -> None:
    images, labels, _ = context.images.spread(40)
    model, spec = context.model.network, context.model.images
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (spec.mean, spec.std))
    for space in ("pixels", "normalised"):
        right = 0
        for image, label in zip(images, labels):
            x = ((image[None] - mean) / std).requires_grad_()
            F.cross_entropy(model(x), label[None]).backward()
            assert x.grad is not None
            eps = 0.05 if space == "normalised" else 0.05 / std
            low, high = (0 - mean) / std, (1 - mean) / std
            attacked = torch.minimum(torch.maximum(x.detach() + eps * x.grad.sign(), low), high)
            right += int(model(attacked).argmax() == label)
        small = make_context(trained(), limit=LIMIT, eps_space=space)
        direction = fgsm.gradient_sign(small.model.classifier, images, labels)
        scale = small.model.classifier.std if space == "normalised" else 1.0
        got = small.model.classifier(fgsm.step(images, direction * scale, 0.05)).argmax(1) == labels
        assert int(got.sum()) == right, space


def test_fgsm_at_zero_is_clean_and_the_space_of_eps_matters(context: EvalContext) -> None:
    pixels = fgsm.measure(context)
    normalised = fgsm.measure(with_options(context, eps_space="normalised"))
    accuracy = 100 - clean.measure(context).values["error"]  # type: ignore[operator]
    assert pixels.values["0"] == normalised.values["0"] == pytest.approx(accuracy, abs=1e-9)
    # The standard deviation is .353 of the range, so the same eps is a weaker attack.
    assert pixels.values["0.05"] < normalised.values["0.05"] < accuracy  # type: ignore[operator]
    assert list(pixels.values) == ["0", "0.05", "0.1", "0.12", "0.15", "0.18", "0.2"]


def test_activations_by_hooks_by_hand(context: EvalContext) -> None:
    images, _, _ = everything(context)
    model = context.model.network
    seen: list[torch.Tensor] = []
    handle = model.stages[1].register_forward_hook(lambda m, a, output: seen.append(output.clone()))  # type: ignore
    with torch.no_grad():
        context.model.classifier(images)
    handle.remove()
    by_image = [sorted((float(c.abs().mean()) for c in sample), reverse=True) for sample in seen[0]]
    expected = np.mean(by_image, axis=0)
    measured = activations.measure(context)
    assert list(measured.curves) == ["stem", "stage1", "stage2", "stage3"]
    assert np.allclose(measured.curves["stage2"], expected, rtol=1e-4)
    assert measured.values["stage2"] == pytest.approx(expected.mean(), rel=1e-4)
    assert not any(module._forward_hooks for module in model.modules())


def test_activations_as_the_authors_compute_them() -> None:
    """The signed sum over the map, of the first image of each batch only, divided by the number of all images."""
    context = make_context(trained(), limit=70, batch_size=30, activations="authors")
    model = context.model.network
    seen: list[torch.Tensor] = []
    handle = model.stages[1].register_forward_hook(lambda m, a, output: seen.append(output.clone()))  # type: ignore
    with torch.no_grad():
        sizes = [len(context.model.classifier(images)) for images, _, _ in context.batches("")]
    handle.remove()
    assert sizes == [30, 30, 10]
    sums = [sum(float(output[0, channel].sum()) for output in seen) / 70 for channel in range(seen[0].shape[1])]
    measured = activations.measure(context)
    assert np.allclose(measured.curves["stage2"], sorted(sums, reverse=True), rtol=1e-4, atol=1e-6)
    assert min(sums) < 0, "the sign is kept"
    assert activations.settings(context) != activations.settings(with_options(context, activations="magnitudes"))


def test_activations_of_tokens_and_of_channels_last() -> None:
    features = torch.rand(2, 5, 4, 3)
    with_class_token = torch.cat([torch.rand(2, 1, 3), features.flatten(1, 2)], dim=1)
    tokens = activations.magnitudes(with_class_token, activations.FeatureMap(3, 5, 4, prefix=1))
    nhwc = activations.magnitudes(features, activations.FeatureMap(3, 5, 4, nhwc=True))
    assert torch.allclose(tokens, nhwc)
    assert torch.allclose(activations.magnitudes(features.permute(0, 3, 1, 2), activations.FeatureMap(3, 5, 4)), nhwc)


def test_activations_of_a_vision_transformer(context: EvalContext) -> None:
    model = timm.create_model("test_vit", num_classes=10, img_size=32).eval()
    classifier = type(context.model.classifier)(model, [0.5] * 3, [0.5] * 3)
    measured = activations.measure(replace(context, model=replace(context.model, classifier=classifier)))
    assert len(measured.curves) >= 2
    assert all(len(curve) == 64 for curve in measured.curves.values())


def test_manifold_mixup_stays_in_the_plane(context: EvalContext) -> None:
    measured = geometry.measure(context)
    assert measured.count == 100
    assert np.abs(measured.curves["manifold_mixup"]).max() < 1e-12
    for name in ("soft_patchup", "hard_patchup"):
        assert np.min(measured.curves[name]) > -1e-12, "the triangle inequality"
        assert np.mean(measured.curves[name]) > 0.001
    # Interpolated blocks are closer to the plane than swapped ones.
    assert measured.values["soft_patchup mean"] < measured.values["hard_patchup mean"]  # type: ignore[operator]


def test_pairs_with_the_same_label_are_marked(context: EvalContext) -> None:
    measured = geometry.measure(context)
    _, labels, _ = context.images.spread(100)
    partner = geometry.pairs(100, torch.Generator().manual_seed(context.seed))
    assert measured.curves[geometry.SAME] == (labels == labels[partner]).double().tolist()
    assert 0 < sum(measured.curves[geometry.SAME]) < 50
    entry = {"values": measured.values, "curves": measured.curves}
    chart = geometry.figure([ResultRow.of("own", {"own": entry})])
    drawn = [len(points.get_offsets()) for points in chart.axes[0].collections]
    same = int(sum(measured.curves[geometry.SAME]))
    assert drawn == [100 - same, same] * 3
    earlier = {"values": measured.values, "curves": {name: measured.curves[name] for name in geometry.METHODS}}
    geometry.figure([ResultRow.of("own", {"own": earlier})])  # results of an earlier release can be plotted


def test_rho_by_hand() -> None:
    first, second = torch.tensor([[1.0, 0, 0]]), torch.tensor([[0, 1.0, 0]])
    assert float(geometry.angle_rho(first, second, torch.tensor([[1.0, 1, 0]]))) == pytest.approx(0, abs=1e-12)
    # Perpendicular to the plane: both angles are right angles.
    assert float(geometry.angle_rho(first, second, torch.tensor([[0, 0, 1.0]]))) == pytest.approx(pi / 2)
    u, v = torch.rand(4, 50, dtype=torch.float64), torch.rand(4, 50, dtype=torch.float64)
    expected = [acos(float(a @ b / (a.norm() * b.norm()))) for a, b in zip(u, v)]
    assert geometry.angle(u, v).tolist() == pytest.approx(expected)


def test_no_sample_is_its_own_partner() -> None:
    for count in (2, 3, 100):
        partner = geometry.pairs(count, torch.Generator().manual_seed(count))
        assert sorted(partner.tolist()) == list(range(count))
        assert not (partner == torch.arange(count)).any()


@pytest.mark.parametrize("name", [name for name in SUITES if SUITES[name].values])
def test_values_have_their_declared_names(name: str) -> None:
    measured = SUITES[name].measure(make_context(trained(), limit=10))
    assert tuple(measured.values) == SUITES[name].values


def test_a_few_samples_cover_all_classes(context: EvalContext) -> None:
    """Image folders are sorted by class, so the first hundred images of ImageNet have two classes."""
    source = ArraySource(np.zeros((40, 32, 32, 3), np.uint8), np.repeat(np.arange(10), 4))
    images, labels, rows = TestImages(source, np.arange(40), context.images.data, context.images.spec).spread(10)
    assert labels.tolist() == list(range(10))
    assert (len(images), len(rows)) == (10, 10)


class Staged(torch.nn.Module):
    """A classifier with one stage, called ``calls`` times, whose output ``change`` replaces."""

    feature_info = ({"module": "stages.0", "num_chs": 3},)
    num_classes = 10

    def __init__(self, change: Callable[[torch.Tensor], Any], calls: int = 1) -> None:
        super().__init__()
        self.stages, self.calls = torch.nn.ModuleList([Returned(change)]), calls
        self.head = torch.nn.LazyLinear(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.calls):
            output = self.stages[0](x)
        return self.head((output[0] if isinstance(output, tuple) else output).flatten(1))


class Returned(torch.nn.Module):
    def __init__(self, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor) -> Any:
        return self.change(x)


def check_activations(context: EvalContext, network: torch.nn.Module) -> None:
    classifier = type(context.model.classifier)(network.eval(), [0.5] * 3, [0.5] * 3)
    activations.check(replace(context, model=replace(context.model, classifier=classifier)))


def test_activations_need_maps_or_tokens(context: EvalContext) -> None:
    check_activations(context, Staged(lambda x: x + 1))
    check_activations(context, Staged(lambda x: x.flatten(2).transpose(1, 2)))
    for network, reason in (
        (Staged(lambda x: (x, x.mean((1, 2, 3)))), "gives a tuple of 2: "),
        (Staged(lambda x: x.mean((2, 3))), r"gives a tensor \(B, 3\)"),
        (Staged(lambda x: x.flatten(2), calls=2), "is called 2 times in a forward pass"),
    ):
        with pytest.raises(UserError, match=rf"^suite activations: none_0: .*{reason}[^.]*; leave the suite out$"):
            check_activations(context, network)
    with pytest.raises(UserError, match=r"^suite activations: none_0 has no sites; leave the suite out$"):
        check_activations(context, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(10)))
