"""AugMix and AutoAugment of the recipes against what their papers define: operations, strengths and blending.

AutoAugment's table of sub-policies is compared with torchvision's, who typed it from the paper, too.
"""

import random
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from timm_patchup.data.transforms import Augmentation
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.parts import AugmentSpec, ImageSpec

# Hendrycks et al., section 3: none that overlaps with the corruptions that AugMix is tested on.
AUGMIX = {
    "AutoContrast": "autocontrast",
    "Equalize": "equalize",
    "PosterizeIncreasing": "posterize",
    "Rotate": "rotate",
    "SolarizeIncreasing": "solarize",
    "ShearX": "shear",
    "ShearY": "shear",
    "TranslateXRel": "translate",
    "TranslateYRel": "translate",
}
OVERLAPPING = {"ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing", "SharpnessIncreasing"}
GREY = (124, 116, 104)  # ImageNet's mean, which fills what comes in from outside


def policy_of(name: str) -> Any:
    """Return the policy that a recipe applies to an image."""
    recipe = load_recipe(name)
    (policy,) = Augmentation(AugmentSpec.of(recipe), ImageSpec.of(recipe), crop=True).policies.transforms
    return policy


def photo(size: int = 48) -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def same(one: Image.Image, other: Image.Image) -> bool:
    return np.array_equal(np.asarray(one), np.asarray(other))


def test_the_sub_policies_of_autoaugment_are_the_papers() -> None:
    published = AutoAugment(AutoAugmentPolicy.IMAGENET).policies
    ours = policy_of("imagenet_autoaugment").policy
    assert len(ours) == len(published) == 25
    for own, theirs in zip(ours, published):
        assert len(own) == len(theirs) == 2
        for operation, (name, probability, level) in zip(own, theirs):
            assert operation.name.removesuffix("Original") == name
            assert operation.prob == probability
            assert level is None or operation.magnitude == level


@pytest.mark.parametrize("level", [0, 3, 5, 9])
def test_a_level_of_autoaugment_is_a_tenth_of_the_papers_range(level: int) -> None:
    """Ranges of the paper's table 6; torchvision lets levels 0 to 9 span them, and reverses two of them."""
    image, share, seen = photo(), level / 10, set()
    enhanced = {"Color": ImageEnhance.Color, "Contrast": ImageEnhance.Contrast, "Sharpness": ImageEnhance.Sharpness}
    filters = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
    for operation in (part for pair in policy_of("imagenet_autoaugment").policy for part in pair):
        operation.prob, operation.magnitude = 1.0, level
        name, got = operation.name, operation(image)
        seen.add(name)
        if name in enhanced:
            assert same(got, enhanced[name](image).enhance(0.1 + 1.8 * share)), name
        elif name == "PosterizeOriginal":
            assert same(got, ImageOps.posterize(image, 4 + int(4 * share)))
        elif name == "Solarize":
            assert same(got, ImageOps.solarize(image, int(256 * share)))
        elif name in ("Rotate", "ShearX"):
            expected = []
            for sign in (1, -1):
                for resample in filters:
                    if name == "Rotate":
                        expected.append(image.rotate(sign * 30 * share, resample=resample, fillcolor=GREY))
                    else:
                        lean = (1, sign * 0.3 * share, 0, 0, 1, 0)
                        transform = Image.Transform.AFFINE
                        expected.append(image.transform(image.size, transform, lean, resample, fillcolor=GREY))
            assert any(same(got, one) for one in expected), name
        else:
            plain = {"AutoContrast": ImageOps.autocontrast, "Equalize": ImageOps.equalize, "Invert": ImageOps.invert}
            assert same(got, plain[name](image)), name
    assert len(seen) == 10


def test_augmix_has_the_published_operations_and_others() -> None:
    names = [operation.name for operation in policy_of("imagenet_augmix").ops]
    assert set(AUGMIX) <= set(names)
    assert len(names) == len(set(names))
    assert set(names) - set(AUGMIX) <= OVERLAPPING, "the cards name timm's own"


def test_strengths_of_augmix_at_severity_three() -> None:
    """The largest of many draws: 30% of each published range; translations reach 9% of a side, and not 10%."""
    random.seed(0)
    policy, ramp = policy_of("imagenet_augmix"), np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    ramps = {"X": Image.fromarray(np.stack([ramp] * 3, -1)), "Y": Image.fromarray(np.stack([ramp.T] * 3, -1))}
    largest: dict[str, float] = {}
    for operation in (one for one in policy.ops if one.name in AUGMIX):
        assert operation.prob == 1.0
        axis = "Y" if operation.name.endswith(("Y", "YRel")) else "X"
        for _ in range(100):
            got = np.asarray(operation(ramps[axis]))[..., 0].astype(int)
            got = got.T if axis == "Y" else got
            kind, middle = AUGMIX[operation.name], got[128]
            if kind == "posterize":
                strength = 8.0 - np.log2(len(np.unique(got)))  # bits that are gone
            elif kind == "solarize":
                strength = 256.0 - int((got[0] == np.arange(256)).sum())  # bright values that are inverted
            elif kind == "translate":
                strength = abs(float(middle[128]) - 128.0) / 256  # part of the side
            elif kind in ("shear", "rotate"):
                strength = abs(float(got[160, 128]) - float(got[96, 128])) / 64  # sideways per row
            else:
                continue
            largest[operation.name] = max(largest.get(operation.name, 0.0), strength)
    degrees = np.rad2deg(np.arcsin(largest.pop("Rotate")))
    assert 8.0 < degrees < 9.6
    for name in ("ShearX", "ShearY"):
        assert 0.08 < largest.pop(name) < 0.1
    for name in ("TranslateXRel", "TranslateYRel"):
        assert 0.08 < largest.pop(name) <= 0.1
    assert largest.pop("PosterizeIncreasing") == 4 + 1
    assert 70 < largest.pop("SolarizeIncreasing") <= int(0.3 * 256)
    assert largest == {}


def test_chains_of_augmix_are_blended_as_published() -> None:
    """With an operation that adds 80, a black image becomes 80 m (w_1 d_1 + w_2 d_2 + w_3 d_3).

    m is uniform, w uniform on the simplex, and the depths d are 1, 2 or 3.
    """
    np.random.seed(0)
    policy = policy_of("imagenet_augmix")
    policy.ops = [lambda image: Image.eval(image, lambda value: value + 80)]
    black, count = Image.new("RGB", (1, 1)), 2500
    values = np.array([np.asarray(policy(black)).max() for _ in range(count)]) / 80
    # E[w_i^2] = 1/6, E[w_i w_j] = 1/12, E[d] = 2, E[d^2] = 14/3: E[bracket^2] = 13/3, and E[m^2] = 1/3.
    second = 13 / 9
    deviation = (second - 1.0) ** 0.5
    assert abs(values.mean() - 1.0) < 5 * deviation / count**0.5 + 1.0 / 80, "Pillow rounds down"
    assert abs((values**2).mean() - second) < 0.15
    assert values.max() < 3.0
