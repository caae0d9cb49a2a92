"""Error under 15 common corruptions at 5 severities (the paper's figures 4 and 15); E_c sums the errors per corruption.

Corrupted images are generated from the test images with imagecorruptions, depending on seed and sample only so that
every model sees the same ones, or read from files (``corrupted_files.py``). The package has ImageNet-C's strengths
only. The published Tiny-ImageNet-C, on which the paper tests, and CIFAR-C are weaker: to compare numbers with published
ones, use those files. With a baseline model the report adds the mean corruption error (mCE).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.sampling import derive_seed
from ...data.source import name_of
from ...errors import UserError
from ...report.charts import bars
from ...report.numbers import Metric, SeedValues
from ...report.pages import Block
from ..context import EvalContext, Measurement
from ..rows import ResultRow
from ..suite import Extra, Option, OptionValues, Suite
from .corrupted_files import SEVERITIES, open_corrupted, require_corrupted, require_folder

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
# Corrupted images are cached for the next model if all of them fit into this many bytes.
CACHE_BYTES = 2**29


def settings(context: EvalContext) -> dict[str, Any]:
    files = context.options["corrupted"]
    generated = "made on the fly with imagecorruptions-imaug, in ImageNet-C's strengths at any size of image"
    return {
        "corruptions": len(CORRUPTIONS),
        "severities": list(SEVERITIES),
        "images": generated if files is None else f"ready files of {name_of(files)}",
        "E_c": "sum of the errors in percent over the severities",
    }


def check(context: EvalContext) -> None:
    """Raise UserError if images are too small to be corrupted, DataError if corrupted files do not fit."""
    _, height, width = context.images.spec.input_size
    if context.options["corrupted"] is not None:
        require_corrupted(context.options["corrupted"], CORRUPTIONS, like=context.images)
    elif min(height, width) < SMALLEST_IMAGE:
        raise UserError(
            f"suite corruptions needs images of at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE} pixels, got {height} x "
            f"{width}: use corrupted files (option corrupted)"
        )


def check_options(options: OptionValues, models: Sequence[str]) -> None:
    """Raise UserError if the baseline is not one of the models, DataError if there is no folder of corrupted images."""
    baseline, files = options["baseline"], options["corrupted"]
    if files is not None:
        require_folder(files)
    if baseline is not None and baseline not in models:
        raise UserError(f"baseline must be one of the models {', '.join(models)}, got {baseline}")


def measure(context: EvalContext) -> Measurement:
    """Return E_c per corruption, the mean error, and the errors per severity."""
    values: dict[str, float | None] = {}
    curves: dict[str, list[float]] = {}
    samples: int | None = None
    for name in CORRUPTIONS:
        curves[name] = []
        for severity in SEVERITIES:
            error, count = _error(context, name, severity)
            curves[name].append(error)
            samples = count if samples is None else samples
            if count != samples:
                raise UserError(
                    f"suite corruptions: {name} at severity {severity} has {count} samples, the others {samples}"
                )
        values[name] = sum(curves[name])
    values["mean error"] = sum(map(sum, curves.values())) / (len(CORRUPTIONS) * len(SEVERITIES))
    return Measurement(values, curves, count=samples or 0)


def mean_corruption_error(values: Mapping[str, float | None], baseline: Mapping[str, float | None]) -> float | None:
    """Return mCE in percent, the mean of E_c relative to the baseline's; None if a baseline value is missing or 0."""
    ratios = []
    for name in CORRUPTIONS:
        own, other = values[name], baseline[name]
        if own is None or not other:
            return None
        ratios.append(own / other)
    return 100.0 * sum(ratios) / len(ratios)


def corrupt(images: Tensor, rows: Sequence[int], *, name: str, severity: int, seed: int) -> Tensor:
    """Return images in [0, 1], (B, C, H, W), as corrupted uint8; the global random state stays as it was."""
    from imagecorruptions import corrupt as corrupt_one

    pixels = (images * 255.0).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    corrupted = np.empty_like(pixels)
    for position, row in enumerate(rows):
        with numpy_seeded(derive_seed(seed, CORRUPTIONS.index(name), severity, row)):
            image = corrupt_one(np.ascontiguousarray(pixels[position]), severity, name)
        corrupted[position] = image[..., : pixels.shape[-1]]  # a grey image becomes three channels
    return torch.from_numpy(corrupted).permute(0, 3, 1, 2).contiguous()


@contextmanager
def numpy_seeded(seed: int) -> Iterator[None]:
    """Seed NumPy inside the block and restore its state afterwards.

    Some corruptions create a generator that cannot be seeded from outside (salt and pepper, glass blur), so generators
    created without a seed get this one.
    """
    state, make_generator = np.random.get_state(), np.random.default_rng
    np.random.seed(seed)
    np.random.default_rng = lambda own=None: make_generator(seed if own is None else own)  # type: ignore[assignment]
    try:
        yield
    finally:
        np.random.default_rng = make_generator
        np.random.set_state(state)


def _error(context: EvalContext, name: str, severity: int) -> tuple[float, int]:
    title = f"corruptions, {name} {severity}"
    if context.options["corrupted"] is not None:
        stored = open_corrupted(context.options["corrupted"], name, severity, like=context.images)
        return replace(context, images=stored).count_errors(title, lambda images, rows: images)
    make = partial(corrupt, name=name, severity=severity, seed=context.seed)
    return context.count_errors(title, partial(_cached, context, (name, severity, context.seed), make))


def _cached(
    context: EvalContext,
    key: tuple[Any, ...],
    make: Callable[[Tensor, Sequence[int]], Tensor],
    images: Tensor,
    rows: Sequence[int],
) -> Tensor:
    """Return ``make(images, rows)`` in [0, 1], computed once for all models that share the images."""
    cache, key = context.images.cache, (*key, tuple(rows))
    corrupted = cache.get(key)
    if corrupted is None:
        corrupted = make(images, rows)
        pixels = len(context.images) * images[0].numel()
        if pixels * len(CORRUPTIONS) * len(SEVERITIES) <= CACHE_BYTES:
            cache[key] = corrupted
    return corrupted.to(context.device).float().div_(255.0)


def corruption_errors(rows: Sequence[ResultRow], against: ResultRow) -> dict[str, SeedValues]:
    """Return the mCE of each row relative to one of them, by label; rows measured on other images are left out."""
    baseline = {name: value.mean for name, value in against.values.items()}
    found = {}
    for row in rows:
        if _corrupted_images(row) == _corrupted_images(against):
            each = [mean_corruption_error(entry["values"], baseline) for entry in row.entries.values()]
            found[row.label] = SeedValues(tuple(value for value in each if value is not None))
    return found


def mce_table(rows: Sequence[ResultRow], options: OptionValues) -> Extra:
    """Return the table of mCE, or a line that explains why there is none."""
    baseline = options["baseline"]
    if baseline is None:
        return Extra((Block("small", "--baseline NAME adds mCE, the mean of E_c relative to that model's."),))
    against = next((row for row in rows if baseline in row.entries), None)
    if against is None:
        return Extra((Block("small", f"No mCE: {baseline} has no results of this suite."),))
    mce = corruption_errors(rows, against)
    cells = [(row.label, mce.get(row.label, SeedValues()).with_std(1)) for row in rows]
    table = Block("table", lines=(("model", f"mCE, %, against {against.label}"), *cells))
    known = {label: {"mean": value.mean, "std": value.std} for label, value in mce.items() if value.values}
    return Extra((table,), {"mce": {"baseline": against.label, "unit": "%", "values": known}})


def _corrupted_images(row: ResultRow) -> tuple[Any, ...]:
    """Return what identifies the images that the models of a row saw: the files, or the seed they were made with."""
    entry = next(iter(row.entries.values()))
    return entry["settings"]["images"], entry["seed"]


SUITE = Suite(
    name="corruptions",
    title="Common corruptions",
    unit="E_c, sum of errors in % over five severities",
    measure=measure,
    settings=settings,
    values=(*CORRUPTIONS, "mean error"),
    labels={"mean error": "mean error, %"},
    metrics=(Metric("corruption_sum", "sum of %", digits=1, lines="corruption"), Metric("corruption_error", "%")),
    digits=1,
    figure=partial(bars, ylabel="E_c, sum of errors in %", without="mean error"),
    packages=("imagecorruptions",),
    options=(
        Option(name="baseline", help="the model that mCE is relative to", metavar="NAME"),
        Option(
            name="corrupted",
            help="use corrupted files instead of generating the images",
            metavar="DIR|hfds/OWNER/NAME",
            replaces=("imagecorruptions",),
            in_study=True,
            label=name_of,
        ),
    ),
    check=check,
    check_options=check_options,
    extra=mce_table,
)
