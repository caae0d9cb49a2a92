"""Error on deformed test images: rotated, sheared and rescaled (the paper's tables 4 and 10).

The paper gives ranges only. Here the angle of a sample is uniform in its range and depends on seed and sample only, so
every model sees the same images. Pixels are interpolated bilinearly; outside of the image is black. Scale s shows s
times the extent of the image: below 1 zooms in, above 1 zooms out. The paper does not state the direction, but in its
table 10 CutMix, which trains on parts of objects, is the best method at 0.6 and the worst at 1.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import pi
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.seeding import derive_seed
from ..context import EvalContext, Measured
from ..figures import bars
from ..suite import Suite


@dataclass(frozen=True)
class Deformation:
    """A rotation or shear by up to ``amount`` degrees in either direction, or a fixed scale."""

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
    """Return the error per deformation."""
    values: dict[str, float | None] = {}
    count = 0
    for deformation in DEFORMATIONS:
        change = partial(deform, deformation, seed=context.seed)
        values[deformation.name], count = context.count_errors(f"affine, {deformation.name}", change)
    return Measured(values, count=count)


def deform(deformation: Deformation, images: Tensor, rows: Sequence[int], *, seed: int) -> Tensor:
    """Return deformed images (B, C, H, W); the angle of a sample depends on its row."""
    return resample(images, matrices(deformation, angles(deformation, rows, seed=seed)))


def angles(deformation: Deformation, rows: Sequence[int], *, seed: int) -> Tensor:
    """Return the angle per sample in degrees, float64 (B,); zeros for a scale."""
    if deformation.kind == "scale":
        return torch.zeros(len(rows), dtype=torch.float64)
    kind = DEFORMATIONS.index(deformation)
    uniform = torch.tensor([derive_seed(seed, kind, row) for row in rows], dtype=torch.float64) / 2**32
    return (2.0 * uniform - 1.0) * deformation.amount


def matrices(deformation: Deformation, degrees: Tensor) -> Tensor:
    """Return matrices (B, 2, 2) that map positions (x, y) of the result to the image, in pixels from the center."""
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
    """Return images (B, C, H, W) sampled at the positions that matrices (B, 2, 2) give, see ``matrices``."""
    height, width = images.shape[-2:]
    # grid_sample's coordinates go from -1 to 1 on both axes, so they must be converted for images that are not square.
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
