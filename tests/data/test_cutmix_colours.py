"""The colours of the ImageNet recipes against CutMix's, whose settings the paper takes: jitter 0.4, lighting 0.1.

CutMix's jitter moves an image towards black, its mean grey or its grey, in random order and by up to 0.4 either way,
without cutting colours off in between. Ours is torchvision's, which cuts them to [0, 1] after each step.
"""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from timm_patchup.data.augment_params import DeviceAugment, jitter_steps
from timm_patchup.data.finish import jitter_
from timm_patchup.data.transforms import Augmentation
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.parts import AugmentSpec, ImageSpec

KINDS = ("brightness", "contrast", "saturation")


def augment() -> DeviceAugment:
    recipe = load_recipe("imagenet_hard_patchup")
    return Augmentation(AugmentSpec.of(recipe), ImageSpec.of(recipe), crop=True).on_device


def towards(image: np.ndarray, kind: str, amount: float) -> np.ndarray:
    """One step of CutMix's jitter, on (3, H, W) in [0, 1]: ``amount`` of the way to another image."""
    grey = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
    other = {"brightness": np.zeros_like(grey), "contrast": np.full_like(grey, grey.mean()), "saturation": grey}[kind]
    return image + amount * (other[None] - image)


def steps(order: tuple[str, ...], amounts: dict[str, float]) -> Tensor:
    rows = [[1 - amounts[k], amounts[k] * (k == "saturation"), amounts[k] * (k == "contrast")] for k in order]
    return torch.tensor([rows])


@pytest.mark.parametrize("order", list(permutations(KINDS)))
def test_jitter_is_cutmixs_where_no_colour_is_cut_off(order: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        image = rng.uniform(0.3, 0.6, (3, 9, 7))  # at most 0.6 * 1.4 and a little
        amounts = dict(zip(KINDS, rng.uniform(-0.4, 0.4, 3)))
        expected = image
        for kind in order:
            expected = towards(expected, kind, amounts[kind])
        assert 0.0 < expected.min() < expected.max() < 1.0
        got = torch.from_numpy(image * 255)[None].float()
        jitter_(got, steps(order, amounts))
        np.testing.assert_allclose(got[0].numpy() / 255, expected, atol=2e-5)


def test_what_leaves_the_range_is_cut_off_after_each_step() -> None:
    image = np.full((3, 2, 2), 0.9)
    got = torch.from_numpy(image * 255)[None].float()
    amounts = {"brightness": -0.4, "contrast": 0.0, "saturation": 0.0}
    jitter_(got, steps(("brightness", "contrast", "saturation"), amounts))
    assert float(got.max()) == 255.0
    assert towards(image, "brightness", -0.4).max() == pytest.approx(1.26)


def test_draws_are_cutmixs() -> None:
    """Amounts uniform in [-0.4, 0.4] for each of three kinds, the orders alike, in bands of four standard errors."""
    torch.manual_seed(0)
    own, count = augment(), 3000
    assert own.jitter is not None
    drawn = np.array([jitter_steps(own.jitter) for _ in range(count)]).reshape(count, 3, 3)
    amounts = 1.0 - drawn[..., 0]
    assert abs(amounts).max() <= 0.4 + 1e-6
    assert abs(amounts.mean()) < 4 * 0.8 / 12**0.5 / (3 * count) ** 0.5
    assert amounts.std() == pytest.approx(0.8 / 12**0.5, rel=0.05)
    kinds = np.where(drawn[..., 1] != 0, 2, np.where(drawn[..., 2] != 0, 1, 0))
    assert {tuple(sorted(row)) for row in kinds.tolist()} == {(0, 1, 2)}
    _, frequency = np.unique(kinds @ [9, 3, 1], return_counts=True)
    assert len(frequency) == 6
    assert abs(frequency / count - 1 / 6).max() < 4 * (5 / 36 / count) ** 0.5


def test_lighting_is_alexnets() -> None:
    """A colour moves by sum_k v_k a_k lambda_k with a_k ~ N(0, 0.1^2): the covariance, colour by colour."""
    values = np.array([0.2175, 0.0188, 0.0045])
    red, green, blue = [-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]
    vectors = np.array([red, green, blue])  # one component per column
    torch.manual_seed(0)
    own = augment()
    count = 4000
    shift = own.stack([own.draw() for _ in range(count)]).shift
    assert shift is not None
    got = np.cov(shift.numpy().T, bias=True)
    expected = np.zeros((3, 3))
    for k in range(3):
        expected += 0.01 * values[k] ** 2 * np.outer(vectors[:, k], vectors[:, k])
    np.testing.assert_allclose(got, expected, rtol=0.12, atol=4e-6)
    assert abs(shift.mean(0)).max() < 4 * float(np.sqrt(expected.max() / count))
    # The smaller components, which the largest hides: along each axis its own deviation.
    along = (shift.numpy() @ vectors).std(0)
    np.testing.assert_allclose(along, 0.1 * values, rtol=0.06)
