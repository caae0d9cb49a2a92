"""Error on deformed test images: rotated, sheared and rescaled (the paper's tables 4 and 10).

Each image is deformed as torchvision's RandomAffine would, which made the authors' test sets: nearest resampling, black
outside, shear along x; a scale below 1 shrinks the image. The angle of a sample is uniform in its range and depends on
seed and sample only, so every model sees the same images. ``--affine authors`` deforms as torchvision 0.4.2, the
authors' release: its shear also squeezes the rows, and its centre is half a pixel off the middle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import cos, radians, sin
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as vision

from ...core.sampling import derive_seed
from ...report.charts import bars
from ...report.numbers import Metric
from ..context import EvalContext, Measurement
from ..suite import OptionValues, Suite, choice


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

AUTHORS = "torchvision 0.4.2"


def settings(context: EvalContext) -> dict[str, Any]:
    found = {
        "deformations": [deformation.name for deformation in DEFORMATIONS],
        "angles": "degrees, uniform, from seed and sample",
        "shear": "along x, columns move by tan(angle) per row",
        "scale": "of the image; below 1 shrinks it",
        "resampling": "torchvision's affine, nearest, black outside",
    }
    if context.options["affine"] == "authors":
        found["shear"] = "along x, columns move by sin(angle) per row, rows are squeezed by cos(angle)"
        found["resampling"] = f"affine of {AUTHORS}, nearest, black outside, centre half a pixel off the middle"
    return found


def measure(context: EvalContext) -> Measurement:
    """Return the error per deformation."""
    values: dict[str, float | None] = {}
    count = 0
    for deformation in DEFORMATIONS:
        change = partial(deform, deformation, seed=context.seed, affine=context.options["affine"])
        values[deformation.name], count = context.count_errors(f"affine, {deformation.name}", change)
    return Measurement(values, count=count)


def deform(
    deformation: Deformation, images: Tensor, rows: Sequence[int], *, seed: int, affine: str = "torchvision"
) -> Tensor:
    """Return deformed images (B, C, H, W) in [0, 1]; the angle of a sample depends on its row."""
    name = {"rotate": "angle", "shear": "shear", "scale": "scale"}[deformation.kind]
    amounts = [deformation.amount] * len(rows) if name == "scale" else angles(deformation, rows, seed=seed)
    change = _affine_of_authors if affine == "authors" else _affine
    return torch.stack([change(image, **{name: amount}) for image, amount in zip(images, amounts)])


def angles(deformation: Deformation, rows: Sequence[int], *, seed: int) -> list[float]:
    """Return the angle per sample in degrees."""
    kind = DEFORMATIONS.index(deformation)
    return [(2.0 * derive_seed(seed, kind, row) / 2**32 - 1.0) * deformation.amount for row in rows]


def _affine(image: Tensor, *, angle: float = 0.0, scale: float = 1.0, shear: float = 0.0) -> Tensor:
    return vision.affine(image, angle, [0, 0], scale, [shear, 0.0], interpolation=InterpolationMode.NEAREST, fill=[0.0])


def _affine_of_authors(image: Tensor, *, angle: float = 0.0, scale: float = 1.0, shear: float = 0.0) -> Tensor:
    """Return an image as torchvision 0.4.2 deforms it: the matrix maps a place in the result to its source."""
    picture = vision.to_pil_image((image * 255.0).round().byte().cpu())
    turn, lean = radians(angle), radians(shear)
    a, b, d, e = (part / (scale * cos(lean)) for part in (cos(turn + lean), sin(turn + lean), -sin(turn), cos(turn)))
    x, y = picture.width / 2 + 0.5, picture.height / 2 + 0.5
    # Pillow's own sampling, because sources exactly between two pixels are decided by its rounding.
    matrix = (a, b, (-a * x - b * y) + x, d, e, (-d * x - e * y) + y)
    deformed = picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)
    return vision.pil_to_tensor(deformed).to(image.device) / 255.0


def _is_current(stored: Mapping[str, Any], options: OptionValues) -> bool:
    by_authors = AUTHORS in stored.get("resampling", "")
    # Earlier releases scaled images the other way round, and did not name the resampling.
    return "resampling" in stored and by_authors == (options["affine"] == "authors")


SUITE = Suite(
    name="affine",
    title="Deformed images",
    unit="error, %",
    measure=measure,
    settings=settings,
    is_current=_is_current,
    values=tuple(deformation.name for deformation in DEFORMATIONS),
    metrics=(Metric("affine_error", "%"),),
    figure=partial(bars, ylabel="error, %"),
    options=(
        choice(
            "affine",
            f"deform as today's torchvision (torchvision, the default), or as {AUTHORS} did (authors)",
            ("torchvision", "authors"),
        ),
    ),
)
