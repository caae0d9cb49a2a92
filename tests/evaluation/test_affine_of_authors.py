"""Deformations of torchvision 0.4.2 (``--affine authors``) against a loop over pixels, written from what they do."""

from math import cos, radians, sin, tan

import numpy as np
import pytest
import torch
from torch import Tensor

from timm_patchup.evaluation.suites import affine

from .evaluating import make_context, trained, with_options

SIZES = [(1, 20, 20), (3, 24, 17)]


def forward_matrix(kind: str, amount: float) -> np.ndarray:
    """Return where (x, y) goes, relative to the centre and with y down."""
    if kind == "scale":
        return np.diag([amount, amount])
    angle = radians(amount)
    if kind == "rotate":
        return np.array([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]])
    return np.array([[1.0, -sin(angle)], [0.0, cos(angle)]])  # a row moves by the sine and is squeezed by the cosine


def slow_deform(image: Tensor, kind: str, amount: float) -> tuple[Tensor, Tensor]:
    """Return the deformed image, and which of its pixels have a source within 1e-3 of the border of two pixels."""
    _, height, width = image.shape
    centre = np.array([width / 2 + 0.5, height / 2 + 0.5])
    back = np.linalg.inv(forward_matrix(kind, amount))
    result, unsure = torch.zeros_like(image), torch.zeros(height, width, dtype=torch.bool)
    for row in range(height):
        for column in range(width):
            x, y = back @ (np.array([column + 0.5, row + 0.5]) - centre) + centre
            unsure[row, column] = bool(min(abs(x - round(x)), abs(y - round(y))) < 1e-3)
            if 0 <= x < width and 0 <= y < height:
                result[:, row, column] = image[:, int(y), int(x)]
    return result, unsure


@pytest.mark.parametrize("deformation", affine.DEFORMATIONS, ids=lambda deformation: deformation.name)
@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_the_loop(deformation: affine.Deformation, size: tuple[int, int, int]) -> None:
    count = 6
    images = torch.randint(1, 256, (count, *size), generator=torch.Generator().manual_seed(0)) / 255
    rows = list(range(count))
    deformed = affine.deform(deformation, images, rows, seed=3, affine="authors")
    amounts = [deformation.amount] * count
    if deformation.kind != "scale":
        amounts = affine.angles(deformation, rows, seed=3)
    for image, result, amount in zip(images, deformed, amounts):
        expected, unsure = slow_deform(image, deformation.kind, amount)
        sure = ~unsure
        assert float(sure.float().mean()) > 0.5
        torch.testing.assert_close(result[:, sure], expected[:, sure])
    today = affine.deform(deformation, images, rows, seed=3)
    if deformation.kind != "scale":  # half a pixel of the centre moves few sources of a scaled image, or none
        assert float((today != deformed).any(1).float().mean()) > 0.1


def test_a_shear_moves_rows_by_the_sine_and_squeezes_them() -> None:
    """A white square of 80 x 80 in 200 x 200: its left edge and its height, by a ruler."""
    image = torch.zeros(1, 1, 200, 200)
    image[..., 60:140, 60:140] = 1.0
    for row in range(30):
        (angle,) = affine.angles(affine.DEFORMATIONS[3], [row], seed=0)
        lean = radians(angle)
        for mode, height in (("authors", cos(lean)), ("torchvision", 1.0)):
            white = affine.deform(affine.DEFORMATIONS[3], image, [row], seed=0, affine=mode)[0, 0] > 0.5
            filled = white.any(1).nonzero().flatten()
            assert len(filled) == pytest.approx(80 * height, abs=1.01)
            left = white[filled].float().argmax(1)
            # The tangent per row of the result: for the authors' that is the sine per row of the source.
            assert float(left[0] - left[-1]) == pytest.approx(tan(lean) * (len(filled) - 1), abs=2.01)


def test_the_switch_measures_other_images() -> None:
    today = make_context(trained(), limit=100)
    authors = with_options(today, affine="authors")
    before, after = affine.measure(today).values, affine.measure(authors).values
    assert list(before) == list(after) == list(affine.SUITE.values)
    assert before != after
    settings = affine.settings(today), affine.settings(authors)
    assert settings[0] != settings[1], "results of one are not reused for the other"
    is_current = affine.SUITE.is_current
    assert is_current is not None
    for own, options in zip(settings, (today.options, authors.options)):
        assert [is_current(stored, options) for stored in settings] == [stored is own for stored in settings]
