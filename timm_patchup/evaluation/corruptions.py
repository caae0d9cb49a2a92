"""Error under 15 common corruptions at 5 severities (the paper's figures 4 and 15): E_c sums the errors of each kind.

They are made on the fly from the test images with imagecorruptions, from seed and sample alone, so that every model
sees the same ones; or read from files that are ready (``corrupted_files.py``). The package knows the strengths of
ImageNet-C only. The published CIFAR-C and Tiny-ImageNet-C, on which the paper tests, have gentler ones for their small
images: numbers to be held against theirs need those files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from ..core.seeding import derive_seed
from ..data.source import name_of
from ..errors import UserError
from .bench import Bench, Measured
from .corrupted_files import SEVERITIES, check_corrupted, open_corrupted

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
SMALLEST_IMAGE = 32
# Corrupted images are kept for the next model as long as all of them fit into so many bytes.
KEPT_BYTES = 2**29


def settings(bench: Bench) -> dict[str, Any]:
    ready = bench.options.corrupted
    made = "made on the fly with imagecorruptions-imaug, in ImageNet-C's strengths at any size of image"
    return {
        "corruptions": len(CORRUPTIONS),
        "severities": list(SEVERITIES),
        "images": made if ready is None else f"ready files of {name_of(ready)}",
        "E_c": "sum of the errors in percent over the severities",
    }


def check(bench: Bench) -> None:
    """Raise UserError where images are too small to be corrupted, DataError where ready ones do not fit."""
    _, height, width = bench.images.recipe.input_size
    if bench.options.corrupted is not None:
        check_corrupted(bench.options.corrupted, CORRUPTIONS, like=bench.images)
    elif min(height, width) < SMALLEST_IMAGE:
        raise UserError(
            f"suite corruptions: images of {height} x {width} pixels are too small, {SMALLEST_IMAGE} are needed; "
            f"--corrupted takes files that are ready"
        )


def measure(bench: Bench) -> Measured:
    """Return E_c of every corruption, the mean error, and the errors by severity."""
    values: dict[str, float | None] = {}
    curves: dict[str, list[float]] = {}
    samples: int | None = None
    for name in CORRUPTIONS:
        curves[name] = []
        for severity in SEVERITIES:
            error, count = _error(bench, name, severity)
            curves[name].append(error)
            samples = count if samples is None else samples
            if count != samples:
                raise UserError(f"suite corruptions: {name} {severity} has {count} samples, others {samples}")
        values[name] = sum(curves[name])
    values["mean error"] = sum(map(sum, curves.values())) / (len(CORRUPTIONS) * len(SEVERITIES))
    return Measured(values, curves, count=samples or 0)


def mean_corruption_error(values: Mapping[str, float | None], baseline: Mapping[str, float | None]) -> float | None:
    """Return mCE in percent: the mean over corruptions of E_c over the baseline's; None where that has no error."""
    ratios = []
    for name in CORRUPTIONS:
        own, other = values[name], baseline[name]
        if own is None or not other:
            return None
        ratios.append(own / other)
    return 100.0 * sum(ratios) / len(ratios)


def corrupt(images: Tensor, rows: Sequence[int], *, name: str, severity: int, seed: int) -> Tensor:
    """Return images in [0, 1], (B, C, H, W), corrupted; of the global random state nothing is left changed."""
    from imagecorruptions import corrupt as corrupt_one

    pixels = (images * 255.0).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    corrupted = np.empty_like(pixels)
    for position, row in enumerate(rows):
        with numpy_seeded(derive_seed(seed, CORRUPTIONS.index(name), severity, row)):
            image = corrupt_one(np.ascontiguousarray(pixels[position]), severity, name)
        corrupted[position] = image[..., : pixels.shape[-1]]  # of a grey image it makes three channels
    return torch.from_numpy(corrupted).permute(0, 3, 1, 2).contiguous()


@contextmanager
def numpy_seeded(seed: int) -> Iterator[None]:
    """Let NumPy's random numbers follow from a seed inside.

    Some corruptions draw from a new generator that they do not let anybody seed (salt and pepper, the shuffled pixels
    of glass), so generators that are made without a seed get this one.
    """
    state, make_generator = np.random.get_state(), np.random.default_rng
    np.random.seed(seed)
    try:
        with patch.object(np.random, "default_rng", lambda own=None: make_generator(seed if own is None else own)):
            yield
    finally:
        np.random.set_state(state)


def _error(bench: Bench, name: str, severity: int) -> tuple[float, int]:
    title = f"corruptions, {name} {severity}"
    if bench.options.corrupted is not None:
        ready = open_corrupted(bench.options.corrupted, name, severity, like=bench.images)
        return replace(bench, images=ready).count_errors(title, lambda images, rows: images)
    make = partial(corrupt, name=name, severity=severity, seed=bench.options.seed)
    return bench.count_errors(title, partial(_kept, bench, (name, severity, bench.options.seed), make))


def _kept(bench: Bench, key: tuple[Any, ...], make: Callable, images: Tensor, rows: Sequence[int]) -> Tensor:
    """Return what ``make`` gives for a batch in [0, 1], made once for all models that see the same images."""
    kept, key = bench.images.kept, (*key, tuple(rows))
    corrupted = kept.get(key)
    if corrupted is None:
        corrupted = make(images, rows)
        pixels = len(bench.images) * images[0].numel()
        if pixels * len(CORRUPTIONS) * len(SEVERITIES) <= KEPT_BYTES:
            kept[key] = corrupted
    return corrupted.to(bench.device).float().div_(255.0)
