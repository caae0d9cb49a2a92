"""Magnitude of the features at each site (the paper's figures 6 and 14).

The magnitude of a channel is the mean of |activation| over its map. The magnitudes of an image are sorted in descending
order, then averaged over the test images. The paper reads "sorted in descending value, and averaged over all test
samples" but not whether a feature is a channel or a single position; we read it as a channel. ``--activations authors``
is what the authors' code computes: the signed sum over the map, of the first image of each batch only, divided by the
number of all images.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...core.layout import FeatureMap, features_in
from ...core.probe import probe
from ...core.sites import list_sites, resolve_sites
from ...errors import SiteError, UserError
from ...report.figures import Figure, panels
from ...report.numbers import Metric
from ..context import EvalContext, Measurement
from ..recording import recorded
from ..rows import ResultRow
from ..suite import Suite, choice


def settings(context: EvalContext) -> dict[str, Any]:
    if context.options["activations"] == "authors":
        size = context.images.batch_size
        return {"magnitude": f"signed sum of each channel, of the first of {size} images each, over all images, sorted"}
    return {"magnitude": "mean of |activation| of each channel, sorted for each image, averaged over images"}


def check(context: EvalContext) -> None:
    """Raise UserError if the model has no sites, or one that returns neither a map nor tokens."""
    network, name = context.model.network, context.model.name
    sites = _site_names(network)
    if not sites:
        raise UserError(f"suite activations: {name} has no sites; leave the suite out")
    try:
        _feature_maps(network, sites, torch.zeros(2, *context.images.spec.input_size))
    except SiteError as error:
        raise UserError(f"suite activations: {name}: {error.reason}; leave the suite out") from error


def measure(context: EvalContext) -> Measurement:
    """Return the sorted mean magnitudes per site as curves, and their means as values."""
    network = context.model.network
    names = _site_names(network)
    count = torch.zeros(1, dtype=torch.float64)
    some = context.images.spread(2)[0].to(context.device)  # gives the sizes; a process may have no batch
    maps = _feature_maps(network, names, some)
    summed = signed_sum if context.options["activations"] == "authors" else sorted_sum
    with torch.inference_mode(), recorded(network, names) as seen:
        context.logits(some)
        channels = {name: magnitudes(seen[name].pop(), maps[name]).shape[1] for name in names}
        sums = {name: torch.zeros(channels[name], dtype=torch.float64) for name in names}
        for images, labels, _ in context.batches("activations"):
            context.logits(images)
            for name in names:
                sums[name] += summed(seen[name].pop(), maps[name])
            count += len(labels)
    total = float(context.total(count))
    means = {name: context.total(sums[name]) / total for name in names}
    curves = {name: mean.sort(descending=True).values.tolist() for name, mean in means.items()}
    values: dict[str, float | None] = {name: sum(curve) / len(curve) for name, curve in curves.items()}
    return Measurement(values, curves, count=int(total))


def magnitudes(output: object, layout: FeatureMap) -> Tensor:
    """Return the mean of |features| per channel over the map of the first tensor that a site gave, (B, C)."""
    return layout.to_nchw(features_in(output)[0]).abs().mean(dim=(2, 3))


def sorted_sum(output: object, layout: FeatureMap) -> Tensor:
    """Return the sum over a batch of the magnitudes of each image, sorted, float64 (C,)."""
    return magnitudes(output, layout).double().sort(dim=1, descending=True).values.sum(dim=0).cpu()


def signed_sum(output: object, layout: FeatureMap) -> Tensor:
    """Return the sum over the map of the first image, with its sign, per channel, float64 (C,)."""
    return layout.to_nchw(features_in(output)[0])[0].double().sum(dim=(1, 2)).cpu()


def figure(rows: Sequence[ResultRow]) -> Figure:
    """Plot the sorted magnitudes, one panel per site and one line per row."""
    entries = [entry for row in rows for entry in row.entries.values()]
    signed = any(entry["settings"]["magnitude"].startswith("signed") for entry in entries)
    sites = list(dict.fromkeys(site for row in rows for site in row.curves))
    chart, all_axes = panels(len(sites))
    for site, axes in zip(sites, all_axes):
        for row in rows:
            members = row.curves.get(site, [])
            if members and len({len(curve) for curve in members}) == 1:
                axes.plot(np.mean(members, axis=0), label=row.label)
        axes.set_title(site)
        axes.set_xlabel("channel, sorted")
        axes.set_ylabel("sum of activations" if signed else "mean |activation|")
        axes.grid(True)
    all_axes[0].legend(fontsize="small")
    return chart


def _site_names(network: nn.Module) -> list[str]:
    return [name for name, module in list_sites(network).items() if module]


def _feature_maps(network: nn.Module, names: Sequence[str], images: Tensor) -> dict[str, FeatureMap]:
    """Return the layout of the first tensor that each site gives.

    Raises:
        SiteError: a site does not run exactly once, or gives neither maps nor tokens of a grid.
    """
    return {name: layouts[0] for name, layouts in probe(network, resolve_sites(network, names), images).items()}


SUITE = Suite(
    name="activations",
    title="Activations",
    unit="mean magnitude at each site",
    measure=measure,
    settings=settings,
    metrics=(Metric("activation", "magnitude", digits=4),),
    digits=4,
    figure=figure,
    check=check,
    options=(
        choice(
            "activations",
            "magnitudes of every image (magnitudes, the default), or what the authors' code sums (authors)",
            ("magnitudes", "authors"),
        ),
    ),
)
