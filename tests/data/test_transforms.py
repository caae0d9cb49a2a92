"""Transforms of single images: crops against a slow loop and against timm's own, and what is left to the device."""

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from torchvision.transforms import functional as pil

from timm_patchup.core.sampling import derive_seed
from timm_patchup.data.decode import to_pixels
from timm_patchup.data.finish import Finish
from timm_patchup.data.global_seed import seed_everything
from timm_patchup.data.images import open_images
from timm_patchup.data.source import open_source
from timm_patchup.data.transforms import Augmentation, EvaluationTransform, PaddedCrops
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.parts import AugmentSpec, DataSpec, ImageSpec

from .small_recipe import small

FLIPS = ["RandomHorizontalFlip", "RandomVerticalFlip"]
TIMM_CROP = "RandomResizedCropAndInterpolation"


def test_padded_crops_against_a_slow_loop() -> None:
    images = torch.randint(0, 256, (30, 3, 9, 7), dtype=torch.uint8)
    crops = PaddedCrops(30, padding=2, hflip=0.5, seed=4)
    index = torch.randperm(30)[:12]
    got = crops(images[index], index, epoch=3)
    top, left, flip = crops._draws(3)
    assert (int(top.min()), int(top.max()), int(left.max())) == (0, 4, 4)
    assert 0 < int(flip.sum()) < 30
    for position, sample in enumerate(index.tolist()):
        padded = np.pad(images[sample].numpy(), ((0, 0), (2, 2), (2, 2)))
        crop = padded[:, top[sample] : top[sample] + 9, left[sample] : left[sample] + 7]
        crop = crop[:, :, ::-1] if flip[sample] else crop
        assert np.array_equal(got[position].numpy(), crop)
    assert torch.equal(crops(images[index[:1]], index[:1], epoch=3), got[:1]), "the same alone as in a batch"


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_padding_matches_torchvision(mode: str) -> None:
    images = torch.randint(0, 256, (6, 3, 9, 7), dtype=torch.uint8)
    got = PaddedCrops(6, padding=4, mode=mode, hflip=0.0, seed=1)._pad(images)
    for image, padded in zip(images, got):
        expected = pil.pad(pil.to_pil_image(image), 4, padding_mode=mode)
        assert np.array_equal(padded.transpose(1, 2, 0), np.asarray(expected))


def test_the_padding_of_a_recipe_reaches_its_images() -> None:
    """With reflected padding no pixel is black that was not; with black padding some are."""
    black = {}
    for mode in ("constant", "reflect"):
        recipe = small(crop_padding=3, crop_padding_mode=mode)
        source = open_source(DataSpec.of(recipe), "test")
        images = open_images(source, np.arange(8), ImageSpec.of(recipe), AugmentSpec.of(recipe))
        images.images.clamp_(min=1)  # type: ignore[union-attr]
        black[mode] = int((images.__getitems__([(2, sample) for sample in range(8)]).pixels == 0).sum())
    assert black["reflect"] == 0 < black["constant"]


@pytest.mark.parametrize(
    ("overrides", "steps", "needs_pil"),
    [
        ({}, ["CropOfBytes", "RandomHorizontalFlip"], False),
        ({"vflip": 0.5, "train_interpolation": "random"}, ["CropOfBytes", *FLIPS], False),
        ({"aa": "rand-m9", "color_jitter": 0.0}, [TIMM_CROP, "RandomHorizontalFlip", "RandAugment"], True),
        ({"train_interpolation": "nearest"}, [TIMM_CROP, "RandomHorizontalFlip"], True),
        ({"input_size": [1, 32, 32], "mean": [0.5], "std": [0.5], "lighting": 0.0}, [TIMM_CROP, FLIPS[0]], True),
    ],
)
def test_what_is_left_to_the_loader(overrides: dict[str, object], steps: list[str], needs_pil: bool) -> None:
    recipe = load_recipe("imagenet_none", overrides)
    augmentation = Augmentation(AugmentSpec.of(recipe), ImageSpec.of(recipe), crop=True)
    parts = (augmentation.geometry, augmentation.policies)
    assert [type(step).__name__ for part in parts for step in part.transforms] == steps
    assert augmentation.needs_pil == needs_pil
    assert (augmentation.on_device.jitter is not None) == (recipe.color_jitter > 0)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "random"])
def test_crops_of_bytes_are_those_of_timm_within_rounding(interpolation: str) -> None:
    """With the same draws, the crop and both flips of a tensor are those that timm makes of a Pillow image."""
    recipe = load_recipe("imagenet_none", {"vflip": 0.5, "train_interpolation": interpolation})
    augment, spec = AugmentSpec.of(recipe), ImageSpec.of(recipe)
    timms, _, _ = create_transform(
        spec.size,
        is_training=True,
        scale=augment.scale,
        ratio=augment.ratio,
        hflip=augment.hflip,
        vflip=augment.vflip,
        interpolation=interpolation,
        separate=True,
    )
    own = Augmentation(augment, spec, crop=True)
    for number in range(12):
        picture = photo(number)
        seed_everything(derive_seed(augment.seed, 3, number))
        expected = to_pixels(timms(picture)).int()
        [(got, _)] = own(to_pixels(picture), number, 3)
        assert got.shape == (3, 224, 224)
        assert_within_rounding(got.int() - expected, interpolation)


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 96, 96), (3, 64, 96)])
def test_evaluated_images_are_those_of_timm_within_rounding(
    crop_mode: str, interpolation: str, size: tuple[int, ...]
) -> None:
    spec = ImageSpec(
        input_size=size,
        mean=(0.4, 0.5, 0.6),
        std=(0.2,) * 3,
        crop_pct=0.875,
        crop_mode=crop_mode,
        interpolation=interpolation,
    )
    timms = create_transform(
        spec.size,
        crop_pct=spec.crop_pct,
        crop_mode=crop_mode,
        interpolation=interpolation,
        mean=spec.mean,
        std=spec.std,
    )
    own, finish = EvaluationTransform(spec), Finish(spec, None, torch.device("cpu"))
    for number in range(4):
        picture = photo(number)
        got = finish(own(picture if own.needs_pil else to_pixels(picture))[None])[0]
        assert_within_rounding((got - timms(picture)) * 0.2 * 255, interpolation)
    keeps_ratio = crop_mode == "border" or (crop_mode == "center" and size[1] != size[2])
    assert own.needs_pil == (interpolation == "nearest" or keeps_ratio)


def assert_within_rounding(difference: torch.Tensor, interpolation: str) -> None:
    """Bytes are rounded after either direction; bicubic weights add up to more than one, so two steps can remain."""
    steps = difference.abs()
    assert float(steps.max()) < (1.01 if interpolation in ("nearest", "bilinear") else 2.01)
    assert float((steps > 1.01).float().mean()) < 0.001
    assert abs(float(difference.float().mean())) < 0.05, "neither darker nor brighter"


def photo(number: int) -> Image.Image:
    """Return an image of a random size with smooth colours and some noise."""
    rng = np.random.default_rng(number)
    height, width = rng.integers(90, 300, 2)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 7, 3), dtype=np.uint8)).resize((width, height))
    noisy = np.asarray(coarse).astype(int) + rng.integers(-20, 20, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
