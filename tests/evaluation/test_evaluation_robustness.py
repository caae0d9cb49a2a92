"""Attacks and corruptions: seeded, summed correctly, and checked against direct computations."""

from dataclasses import replace
from itertools import pairwise

import foolbox
import imagecorruptions
import numpy as np
import pytest
import timm
import torch

from timm_patchup.core.sampling import derive_seed
from timm_patchup.errors import DataError, UserError
from timm_patchup.evaluation.context import EvalContext
from timm_patchup.evaluation.suites import attacks, clean, corruptions, geometry

from .evaluating import make_context, trained, with_options


@pytest.fixture(scope="module")
def context() -> EvalContext:
    return make_context(trained())


def everything(context: EvalContext) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    return context.images.spread(len(context.images))  # type: ignore[return-value]


def test_pgd_accuracy_does_not_rise_with_eps(context: EvalContext) -> None:
    target = foolbox.PyTorchModel(context.model.classifier, bounds=(0, 1), device="cpu")
    small = make_context(trained(), limit=150)
    images, labels, _ = everything(small)
    accuracy = []
    for radius in (0.0, 1 / 255, 4 / 255, 8 / 255, 32 / 255):
        if radius:
            turned = attacks.pgd_succeeds(target, images, labels, steps=7, seed=(0,), radius=radius)
        else:
            turned = context.model.classifier(images).argmax(1) != labels
        accuracy.append(100 - 100 * float(turned.double().mean()))
    assert accuracy[0] == pytest.approx(100 - clean.measure(small).values["error"])  # type: ignore[operator]
    assert all(later <= earlier + 1.0 for earlier, later in pairwise(accuracy)), accuracy
    assert accuracy[-1] < accuracy[0] - 10, accuracy


def test_attacks(context: EvalContext) -> None:
    small = make_context(trained(), limit=40, batch_size=20)
    measured = attacks.measure(small)
    accuracy = 100 - clean.measure(small).values["error"]  # type: ignore[operator]
    assert measured.count == 40
    for name in ("deepfool", "ddn", "carlini_wagner", "pgd"):
        assert measured.values[f"{name} accuracy"] <= accuracy  # type: ignore[operator]
    assert measured.values["pgd accuracy"] < accuracy, "8/255 in L-infinity reaches further than in L2"
    assert measured.values["pgd accuracy"] < measured.values["ddn accuracy"]  # type: ignore[operator]
    assert measured.values["deepfool median distance"] > 0  # type: ignore[operator]


def test_an_attack_that_finds_nothing_does_not_count(context: EvalContext) -> None:
    images, labels, _ = context.images.spread(12)
    right = context.model.classifier(images).argmax(1) == labels
    black = context.model.classifier(torch.zeros_like(images)).argmax(1)
    assert bool((right & (black != labels)).any()), "black is classified differently for some"
    distances = attacks._distances(images, torch.zeros_like(images), labels, right, context)
    assert torch.equal(distances == 0, ~right)
    assert torch.isinf(distances[right]).all()
    assert torch.isinf(attacks._distances(images, images, labels, right, context)[right]).all()


def test_accuracy_is_foolboxs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The perturbation is cut to the radius and tried again; counting distances above the radius is another number."""
    small = make_context(trained(), limit=40, batch_size=40)
    images, labels, _ = next(iter(small.batches("")))
    target = foolbox.PyTorchModel(small.model.classifier, bounds=(0, 1), device="cpu")
    clean_accuracy = 100 * float((target(images).argmax(1) == labels).double().mean())
    found = {
        "deepfool": foolbox.attacks.L2DeepFoolAttack(steps=7, candidates=10, overshoot=0.02),
        "ddn": foolbox.attacks.DDNAttack(steps=7, init_epsilon=1.0, gamma=0.05),
        "carlini_wagner": foolbox.attacks.L2CarliniWagnerAttack(
            steps=7, stepsize=0.01, binary_search_steps=9, initial_const=1e-3
        ),
    }
    differ = 0
    for radius in (attacks.RADIUS, 0.5):
        monkeypatch.setattr(attacks, "RADIUS", radius)
        measured = attacks.measure(small).values
        for name, attack in found.items():
            raw, _, succeeded = attack(target, images, labels, epsilons=radius)
            assert measured[f"{name} accuracy"] == pytest.approx(100 * float(1 - succeeded.double().mean())), name
            distance = (raw - images).flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1)
            cut = images + (raw - images) * (radius / distance).clamp(max=1.0)
            assert torch.equal(target(cut).argmax(1) != labels, succeeded), f"{name}: restated by hand"
            counted = (target(raw).argmax(1) != labels) & (distance.flatten() <= radius)
            differ += not torch.equal(counted, succeeded)
    assert all(measured[f"{name} accuracy"] < clean_accuracy for name in found), "each attack finds something"  # type: ignore[operator]
    assert differ, "the two definitions must differ somewhere, or this test would not notice"


def test_step_of_pgd(context: EvalContext) -> None:
    """Foolbox's default step is 0.033 of the radius, of which 7 steps cover a quarter: a weaker attack."""
    small = make_context(trained(), limit=100, batch_size=100)
    images, labels, rows = next(iter(small.batches("")))
    target = foolbox.PyTorchModel(small.model.classifier, bounds=(0, 1), device="cpu")
    turned = {
        step: attacks.pgd_succeeds(target, images, labels, steps=7, seed=(0, 3, rows[0]), step=step)
        for step in attacks.PGD_STEPS
    }
    with torch.random.fork_rng([]):
        torch.manual_seed(derive_seed(0, 3, rows[0]))
        own = foolbox.attacks.LinfPGD(steps=7)(target, images, labels, epsilons=attacks.RADIUS)[2]
    assert torch.equal(turned["foolbox"], own)
    assert int(turned["foolbox"].sum()) < int(turned["madry"].sum())
    said = {step: attacks.settings(with_options(small, pgd_step=step))["pgd"] for step in attacks.PGD_STEPS}
    assert said["madry"] == "L-infinity, step 0.25 of the radius, random start"
    assert said["foolbox"] == "L-infinity, step 0.0333 of the radius, random start"


def test_random_starts_are_seeded(context: EvalContext) -> None:
    target = foolbox.PyTorchModel(context.model.classifier, bounds=(0, 1), device="cpu")
    images, labels, _ = context.images.spread(4)
    attack = foolbox.attacks.LinfPGD(steps=1, abs_stepsize=0.001, random_start=True)
    before = torch.random.get_rng_state()
    one, again, other = (attacks._seeded(attack, target, images, labels, 0.1, (0, seed))[0] for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_median_of_distances() -> None:
    infinite = float("inf")
    assert attacks._median(torch.tensor([3.0, 1.0, 2.0])) == 2.0
    assert attacks._median(torch.tensor([1.0, 2.0])) == 1.5
    assert attacks._median(torch.tensor([1.0, infinite, infinite])) is None
    assert attacks._median(torch.tensor([])) is None


def test_corruptions_depend_on_seed_and_sample_only(context: EvalContext) -> None:
    assert list(corruptions.CORRUPTIONS) == imagecorruptions.get_corruption_names("common")
    images, _, rows = context.images.spread(6)
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr]
    for name in corruptions.CORRUPTIONS:
        make = {"name": name, "severity": 3, "seed": 0}
        corrupted = corruptions.corrupt(images, rows, **make)
        again = corruptions.corrupt(images[[4, 1]], [rows[4], rows[1]], **make)
        assert torch.equal(corrupted[[4, 1]], again), name
        assert (corrupted.float() / 255 - images).abs().mean() > 0.002, name
    assert np.array_equal(state, np.random.get_state()[1])  # type: ignore[arg-type]
    one, other = (corruptions.corrupt(images, rows, name="fog", severity=1, seed=seed) for seed in (0, 1))
    assert not torch.equal(one, other)


def test_corruption_errors_add_up(context: EvalContext) -> None:
    small = make_context(trained(), limit=20)
    measured = corruptions.measure(small)
    assert len(measured.curves) == 15
    for name, errors in measured.curves.items():
        assert len(errors) == 5
        assert measured.values[name] == pytest.approx(sum(errors))
    images, labels, rows = everything(small)
    pixels = corruptions.corrupt(images, rows, name="contrast", severity=5, seed=0)
    wrong = small.model.classifier(pixels.float() / 255).argmax(1) != labels
    assert measured.curves["contrast"][4] == pytest.approx(100 * float(wrong.double().mean()))
    assert measured.values["mean error"] == pytest.approx(np.mean(list(measured.curves.values())))


def test_mce_by_hand() -> None:
    baseline = dict.fromkeys(corruptions.CORRUPTIONS, 200.0)
    own = {name: 100.0 if position else 200.0 for position, name in enumerate(corruptions.CORRUPTIONS)}
    assert corruptions.mean_corruption_error(own, baseline) == pytest.approx(100 * (1 + 14 * 0.5) / 15)
    assert corruptions.mean_corruption_error(baseline, baseline) == 100.0
    assert corruptions.mean_corruption_error(own, baseline | {"fog": 0.0}) is None


def test_small_images_are_not_corrupted(context: EvalContext) -> None:
    images = make_context(trained(), limit=20).images
    images.spec = replace(images.spec, input_size=(3, 28, 28))
    with pytest.raises(UserError, match=r"at least 32 x 32 pixels, got 28 x 28"):
        corruptions.check(replace(context, images=images))
    with pytest.raises(DataError, match="ready is not a folder"):  # files may have any size
        corruptions.check(replace(with_options(context, corrupted="ready"), images=images))


def test_geometry_of_token_models_and_maps(context: EvalContext) -> None:
    for name, settings in (
        ("test_vit", {"img_size": 32}),
        ("test_vit", {"img_size": 32, "patch_drop_rate": 0.5}),  # nothing is dropped in eval mode
        ("test_mambaout", {}),
    ):
        model = timm.create_model(name, num_classes=10, **settings).eval()
        other = replace(context.model, classifier=type(context.model.classifier)(model, [0.5] * 3, [0.5] * 3))
        geometry.check(replace(context, model=other))
        assert np.abs(geometry.measure(replace(context, model=other)).curves["manifold_mixup"]).max() < 1e-12
