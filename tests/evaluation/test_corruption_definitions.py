"""Corruptions made on the fly against the published definitions, with ImageNet-C's strengths at severities 1 to 5.

Noise is checked by its statistics, what is deterministic pixel by pixel. Outside of these tests, all fifteen were
compared with the original package at equal random numbers, see scripts/README.md.
"""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import convolve

from timm_patchup.evaluation.suites.corruptions import CORRUPTIONS, corrupt

SEVERITIES = (1, 2, 3, 4, 5)
STRENGTHS = {
    "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),  # standard deviation
    "shot_noise": (60, 25, 12, 5, 3),  # photons at white
    "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),  # share of values
    "defocus_blur": (3, 4, 6, 8, 10),  # radius of the disk
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),  # what is left of it
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),  # added to the value of HSV
    "jpeg_compression": (25, 18, 15, 10, 7),  # quality
    "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),  # of the side
}


def corrupted(pixels: np.ndarray, name: str, severity: int) -> np.ndarray:
    """Return one image (H, W, 3), uint8, as the suite makes it."""
    images = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 255
    return corrupt(images, [7], name=name, severity=severity, seed=0)[0].permute(1, 2, 0).numpy()


def photo(size: int = 64) -> np.ndarray:
    coarse = np.random.default_rng(1).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC))


def grey(level: int, size: int = 128) -> np.ndarray:
    return np.full((size, size, 3), level, dtype=np.uint8)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise(severity: int) -> None:
    """On flat images, where little or nothing is cut off; 49,152 values, so 1.5% is five standard errors."""
    sigma, photons, share = (STRENGTHS[n][severity - 1] for n in ("gaussian_noise", "shot_noise", "impulse_noise"))
    values = corrupted(grey(128), "gaussian_noise", severity).astype(float) / 255
    inside = (values > 0.02) & (values < 0.98)
    # Quantiles, which do not feel the cut: 16% and 84% are a standard deviation away.
    low, high = np.quantile(values, [0.158655, 0.841345])
    assert inside.mean() > 0.7
    assert (high - low) / 2 == pytest.approx(min(sigma, 0.5), rel=0.03, abs=1 / 255)

    level = 26  # a tenth of white: seldom above it
    values = corrupted(grey(level), "shot_noise", severity).astype(float) / 255
    assert values.mean() == pytest.approx(level / 255, rel=0.04, abs=0.5 / 255)  # bytes are rounded down
    assert values.var() == pytest.approx(level / 255 / photons, rel=0.06)
    # Only whole photons arrive.
    arrived = np.unique(values) * photons
    assert np.abs(arrived - np.ceil(arrived - 1e-9)).max() < photons / 255 + 1e-6

    values = corrupted(grey(128), "impulse_noise", severity)
    black, white = (values == 0).mean(), (values == 255).mean()
    assert set(np.unique(values)) == {0, 128, 255} or set(np.unique(values)) == {0, 127, 255}
    for part in (black, white):
        assert part == pytest.approx(share / 2, abs=5 * (share / 2 / values.size) ** 0.5)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_and_brightness(severity: int) -> None:
    image = photo()
    kept, added = STRENGTHS["contrast"][severity - 1], STRENGTHS["brightness"][severity - 1]
    unit = image / 255
    means = unit.mean((0, 1), keepdims=True)
    expected = 255 * ((unit - means) * kept + means).clip(0, 1)
    assert np.abs(corrupted(image, "contrast", severity) - np.floor(expected + 1e-6)).max() <= 1
    # The value of HSV is the largest colour; hue and saturation stay, so all three colours grow in proportion.
    value = unit.max(2, keepdims=True)
    expected = 255 * unit / np.maximum(value, 1e-9) * (value + added).clip(max=1)
    known = (value > 0.05)[..., 0]
    assert np.abs(corrupted(image, "brightness", severity)[known] - expected[known]).max() < 1.01


@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_and_pixelate(severity: int) -> None:
    image = photo()
    stored = io.BytesIO()
    Image.fromarray(image).save(stored, "JPEG", quality=int(STRENGTHS["jpeg_compression"][severity - 1]))
    assert np.array_equal(corrupted(image, "jpeg_compression", severity), np.asarray(Image.open(stored)))
    side = int(64 * STRENGTHS["pixelate"][severity - 1])
    small = Image.fromarray(image).resize((side, side), Image.Resampling.BOX)
    block = ((np.arange(64) + 0.5) * side / 64).astype(int)  # the block with the centre of a pixel
    assert np.array_equal(corrupted(image, "pixelate", severity), np.asarray(small)[block][:, block])


@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_is_a_disk(severity: int) -> None:
    """A point becomes a disk of the published radius, hardly blurred, and an image its convolution with that."""
    radius = int(STRENGTHS["defocus_blur"][severity - 1])
    place = np.arange(-12, 13)
    disk = (place[:, None] ** 2 + place**2 <= radius**2).astype(float)
    image = photo()
    expected = np.stack([convolve(image[..., c] / 255, disk / disk.sum(), mode="mirror") for c in range(3)], -1) * 255
    inside = slice(16, -16)
    difference = corrupted(image, "defocus_blur", severity)[inside, inside] - expected[inside, inside]
    assert np.abs(difference).max() < 4, "the edge of the disk is softened"
    other = (place[:, None] ** 2 + place**2 <= (radius + 1) ** 2).astype(float)
    wider = np.stack([convolve(image[..., c] / 255, other / other.sum(), mode="mirror") for c in range(3)], -1) * 255
    assert np.abs(difference).mean() < np.abs(expected - wider)[inside, inside].mean() + 0.7


def test_severities_of_the_others_grow() -> None:
    """Random weather differs from image to image, so by the mean over six."""
    assert len(CORRUPTIONS) == 15
    assert set(STRENGTHS) <= set(CORRUPTIONS)
    images = torch.from_numpy(photo().copy()).permute(2, 0, 1)[None].expand(6, -1, -1, -1) / 255
    for name in set(CORRUPTIONS) - set(STRENGTHS):
        changes = [corrupt(images, range(6), name=name, severity=severity, seed=0) / 255 for severity in (1, 5)]
        slight, strong = ((changed - images).abs().mean() for changed in changes)
        assert slight < strong, name
