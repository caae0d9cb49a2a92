"""Transforms: crops against a slow loop, color shifts along ImageNet's principal axes, and the order of steps."""

import numpy as np
import torch

from timm_patchup.data.transforms import Augmentation, Lighting, PaddedCrops
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.parts import AugmentSpec, ImageSpec


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


def test_lighting_shifts_colors_along_the_principal_axes() -> None:
    image = torch.rand(3, 5, 4)
    torch.manual_seed(1)
    shifts = torch.stack([(Lighting(0.1)(image) - image)[:, 0, 0] for _ in range(4000)]).double()
    torch.manual_seed(1)
    change = Lighting(0.1)(image) - image
    torch.testing.assert_close(change, change[:, :1, :1].expand_as(change))
    values = torch.linalg.eigvalsh(shifts.T @ shifts / len(shifts)).sqrt().flip(0)
    torch.testing.assert_close(values, 0.1 * torch.tensor([0.2175, 0.0188, 0.0045]).double(), rtol=0.05, atol=1e-4)


def test_order_of_imagenet_transforms() -> None:
    recipe = load_recipe("imagenet_none")
    augmentation = Augmentation(AugmentSpec.of(recipe), ImageSpec.of(recipe), crop=True)
    steps = (augmentation.geometry, augmentation.color, augmentation.final)
    kinds = [type(step).__name__ for part in steps for step in part.transforms]
    assert kinds == [
        "RandomResizedCropAndInterpolation",
        "RandomHorizontalFlip",
        "ColorJitter",
        "MaybeToTensor",
        "Lighting",
        "Normalize",
    ]
