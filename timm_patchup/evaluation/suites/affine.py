"""Error on deformed test images: rotated, sheared and rescaled (the paper's tables 4 and 10).

The paper names ranges only. Here a sample's angle is uniform in its range, from the seed and the sample alone, so that
every model sees the same images; the pixels are interpolated bilinearly and what lies outside the image is black. Scale
s shows s times the image's extent: below 1 is a closer look, above 1 a wider one. The paper does not say which way
round: in its table 10 CutMix, which trains on parts of objects, is first of all methods at 0.6 and last at 1.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import pi
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.draw import derive_seed
from ..context import EvalContext, Measured
from ..figures import bars
from ..suite import Suite


@dataclass(frozen=True)
class Deformation:
    """One kind of deformation: an angle up to ``amount`` degrees either way, or a fixed scale."""

    kind: Literal["rotate", "shear", "scale"]
    amount: float

    @property
    def name(self) -> str:
        return f"{self.kind} {self.amount:g}" if self.kind == "scale" else f"{self.kind} +-{self.amount:g}"


DEFORMATIONS = (
    Deformation("rotate", 20.0),
    Deformation("rotate", 40.0),
    Deformation("shear", 28.6),
    Deformation("shear", 57.3),
    Deformation("scale", 0.6),
    Deformation("scale", 0.8),
    Deformation("scale", 1.2),
    Deformation("scale", 1.4),
)


def settings(context: EvalContext) -> dict[str, Any]:
    return {
        "deformations": [deformation.name for deformation in DEFORMATIONS],
        "angles": "degrees, uniform, from seed and sample",
        "shear": "columns move by tan(angle) for each row",
        "scale": "the view is so many times the image; below 1 zooms in",
        "interpolation": "bilinear, black outside",
    }


def measure(context: EvalContext) -> Measured:
    """Return the error under each deformation."""
    values: dict[str, float | None] = {}
    count = 0
    for deformation in DEFORMATIONS:
        change = partial(deform, deformation, seed=context.seed)
        values[deformation.name], count = context.count_errors(f"affine, {deformation.name}", change)
    return Measured(values, count=count)


def deform(deformation: Deformation, images: Tensor, rows: Sequence[int], *, seed: int) -> Tensor:
    """Return images (B, C, H, W) deformed, each by the angle that belongs to its row."""
    return resample(images, matrices(deformation, angles(deformation, rows, seed=seed)))


def angles(deformation: Deformation, rows: Sequence[int], *, seed: int) -> Tensor:
    """Return the angle of each sample in degrees, float64 (B,); zeros where nothing is random."""
    if deformation.kind == "scale":
        return torch.zeros(len(rows), dtype=torch.float64)
    kind = DEFORMATIONS.index(deformation)
    uniform = torch.tensor([derive_seed(seed, kind, row) for row in rows], dtype=torch.float64) / 2**32
    return (2.0 * uniform - 1.0) * deformation.amount


def matrices(deformation: Deformation, degrees: Tensor) -> Tensor:
    """Return, (B, 2, 2), where each place (x, y) of the result lies in the image, both from the centre in pixels."""
    angle = degrees * (pi / 180.0)
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    if deformation.kind == "rotate":
        entries = [angle.cos(), -angle.sin(), angle.sin(), angle.cos()]
    elif deformation.kind == "shear":
        entries = [one, -angle.tan(), zero, one]
    else:
        entries = [one * deformation.amount, zero, zero, one * deformation.amount]
    return torch.stack(entries, dim=-1).view(-1, 2, 2)


def resample(images: Tensor, matrix: Tensor) -> Tensor:
    """Return images (B, C, H, W) looked at through matrices (B, 2, 2) of pixels."""
    height, width = images.shape[-2:]
    # grid_sample counts both axes from -1 to 1; pixels are square only after its units are undone.
    size = torch.tensor([width, height], dtype=matrix.dtype)
    relative = matrix * size[None, None, :] / size[None, :, None]
    theta = torch.cat([relative, torch.zeros(len(matrix), 2, 1, dtype=matrix.dtype)], dim=2).to(images)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


SUITE = Suite(
    name="affine",
    title="Deformed images",
    unit="error, %",
    measure=measure,
    settings=settings,
    values=tuple(deformation.name for deformation in DEFORMATIONS),
    figure=partial(bars, ylabel="error, %"),
)
