"""How large the features are at each site (the paper's figures 6 and 14).

For one image a channel's magnitude is the mean of |activation| over its map; the magnitudes of an image are sorted in
descending order, and the sorted ones averaged over the test images. The paper says "sorted in descending value, and
averaged over all test samples" and not whether a feature is a channel or one place of it: a channel is our reading.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..core.layout import FeatureMap
from ..core.probe import probe
from ..core.sites import list_sites, resolve_sites, site_module
from ..errors import SiteError, UserError
from .bench import Bench, Measured


def settings(bench: Bench) -> dict[str, Any]:
    return {"magnitude": "mean of |activation| of each channel, sorted for each image, averaged over images"}


def check(bench: Bench) -> None:
    """Raise UserError where the model has no sites, or one that gives neither a map nor tokens."""
    model = bench.subject.classifier.model
    names = _names(model)
    if not names:
        raise UserError(f"suite activations: {bench.subject.name} has no sites inside it")
    try:
        _layouts(model, names, torch.zeros(2, *bench.images.recipe.input_size))
    except SiteError as error:
        raise UserError(f"suite activations: {bench.subject.name}: {error}") from error


def measure(bench: Bench) -> Measured:
    """Return the sorted mean magnitudes at each site, and their mean."""
    model = bench.subject.classifier.model
    names = _names(model)
    count = torch.zeros(1, dtype=torch.float64)
    some = bench.images.spread(2)[0].to(bench.device)  # a process may have no batch of its own to learn the sizes from
    layouts = _layouts(model, names, some)
    with torch.inference_mode(), recorded(model, names) as seen:
        bench.logits(some)
        channels = {name: magnitudes(seen[name], layouts.get(name)).shape[1] for name in names}
        sums = {name: torch.zeros(channels[name], dtype=torch.float64) for name in names}
        for images, labels, _ in bench.batches("activations"):
            bench.logits(images)
            for name in names:
                sizes = magnitudes(seen[name], layouts.get(name)).double().sort(dim=1, descending=True).values
                sums[name] += sizes.sum(dim=0).cpu()
            count += len(labels)
    total = float(bench.total(count))
    curves = {name: (bench.total(sums[name]) / total).tolist() for name in names}
    values: dict[str, float | None] = {name: sum(curve) / len(curve) for name, curve in curves.items()}
    return Measured(values, curves, count=int(total))


def magnitudes(features: Tensor, layout: FeatureMap | None) -> Tensor:
    """Return the mean of |features| of each channel, (B, C): of a map (B, C, H, W), NHWC, or of tokens (B, N, C)."""
    if features.ndim == 3:
        return features.abs().mean(dim=1)
    return features.abs().mean(dim=(1, 2) if layout is not None and layout.nhwc else (2, 3))


@contextmanager
def recorded(model: nn.Module, names: list[str]) -> Iterator[dict[str, Tensor]]:
    """Keep what each site gives in the passes inside."""
    seen: dict[str, Tensor] = {}
    handles = []

    def keeper(name: str) -> Any:
        def keep(module: nn.Module, args: object, output: Tensor) -> None:
            seen[name] = output.detach().clone()  # an in-place activation may follow

        return keep

    for site in resolve_sites(model, names):
        handles.append(site_module(model, site).register_forward_hook(keeper(site.name)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _names(model: nn.Module) -> list[str]:
    return [name for name, module in list_sites(model).items() if module]


def _layouts(model: nn.Module, names: list[str], images: Tensor) -> dict[str, FeatureMap]:
    """Return the layout of every site that gives a map; tokens have but one."""
    found: dict[str, FeatureMap] = {}
    for site in resolve_sites(model, names):
        try:
            found[site.name] = probe(model, [site], images)[site.name]
        except SiteError as error:
            if "tokens" not in str(error):
                raise
    return found
