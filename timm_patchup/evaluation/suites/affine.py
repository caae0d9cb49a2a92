"""Error on deformed test images: rotated, sheared and rescaled (the paper's tables 4 and 10).

Each image is deformed as torchvision's RandomAffine would, which made the authors' test sets: nearest resampling, black
outside, shear along x; a scale below 1 shrinks the image. The angle of a sample is uniform in its range and depends on
seed and sample only, so every model sees the same images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as vision

from ...core.sampling import derive_seed
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
        "shear": "along x, columns move by tan(angle) per row",
        "scale": "of the image; below 1 shrinks it",
        "resampling": "torchvision's affine, nearest, black outside",
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
    if deformation.kind == "scale":
        return _affine(images, scale=deformation.amount)
    degrees = angles(deformation, rows, seed=seed)
    if deformation.kind == "rotate":
        return torch.stack([_affine(image, angle=angle) for image, angle in zip(images, degrees)])
    return torch.stack([_affine(image, shear=angle) for image, angle in zip(images, degrees)])


def angles(deformation: Deformation, rows: Sequence[int], *, seed: int) -> list[float]:
    """Return the angle per sample in degrees."""
    kind = DEFORMATIONS.index(deformation)
    return [(2.0 * derive_seed(seed, kind, row) / 2**32 - 1.0) * deformation.amount for row in rows]


def _affine(images: Tensor, *, angle: float = 0.0, scale: float = 1.0, shear: float = 0.0) -> Tensor:
    return vision.affine(
        images, angle, [0, 0], scale, [shear, 0.0], interpolation=InterpolationMode.NEAREST, fill=[0.0]
    )


SUITE = Suite(
    name="affine",
    title="Deformed images",
    unit="error, %",
    measure=measure,
    settings=settings,
    is_current=lambda stored, options: "resampling" in stored,  # earlier releases scaled images the other way round
    values=tuple(deformation.name for deformation in DEFORMATIONS),
    figure=partial(bars, ylabel="error, %"),
)
