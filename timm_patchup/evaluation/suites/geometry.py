"""Geometry of mixed features (the paper's appendix C, figure 10): the angle rho = alpha_1 + alpha_2 - theta.

theta is the angle between the flattened features of two samples, alpha_1 and alpha_2 those between each of them and
their mixture. rho is 0 if the mixture is between the two in their plane, as for every interpolation of whole vectors,
and above 0 if it is outside of the plane.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.functional import grow_blocks, mix_features, seed_rate
from ...core.layout import features_in
from ...core.probe import probe
from ...core.sampling import bernoulli
from ...core.sites import list_sites, resolve_sites
from ...errors import SiteError, UserError
from ...report.figures import Figure, panels
from ...report.numbers import Metric
from ..context import EvalContext, Measurement
from ..recording import recorded
from ..rows import ResultRow
from ..suite import Suite

SITE, SAMPLES = "stage2", 100
LAM, GAMMA, BLOCK_SIZE = 0.4, 0.5, 7
METHODS = ("manifold_mixup", "soft_patchup", "hard_patchup")
SAME = "same label"  # curve: 1 for a pair with the same label, else 0


def settings(context: EvalContext) -> dict[str, Any]:
    mixing = {"site": SITE, "lam": LAM, "gamma": GAMMA, "block_size": BLOCK_SIZE}
    return mixing | {"samples": f"{SAMPLES} at most, spread over the classes", "unit": "radians", "marked": SAME}


def check(context: EvalContext) -> None:
    """Raise UserError if there is no pair of samples, or the site does not return a feature map."""
    if len(context.images) < 2:
        raise UserError(f"suite geometry needs at least two samples, got {len(context.images)}")
    model = context.model.network
    sites = list_sites(model)
    if SITE not in sites:
        raise UserError(f"suite geometry: {context.model.name} has no site {SITE}, only {', '.join(sites)}")
    try:
        probe(model, resolve_sites(model, [SITE]), torch.zeros(2, *context.images.spec.input_size))
    except SiteError as error:
        raise UserError(f"suite geometry: {context.model.name}: {error.reason}; leave the suite out") from error


def measure(context: EvalContext) -> Measurement:
    """Return rho per pair and method; the pairs are the same, and both modes of PatchUp use the same mask."""
    images, labels, _ = context.images.spread(SAMPLES)
    images = images.to(context.device)
    model = context.model.network
    layout = probe(model, resolve_sites(model, [SITE]), images)[SITE][0]
    with torch.inference_mode(), recorded(model, [SITE]) as seen:
        context.logits(images)
    # In float64 on the CPU, because rho is a small difference of angles.
    features = layout.to_nchw(features_in(seen[SITE].pop())[0].cpu().double())
    generator = torch.Generator().manual_seed(context.seed)
    partner = pairs(len(features), generator)
    mixed = mixtures(features, partner, generator)
    rhos = {name: angle_rho(features, features[partner], mixed[name]) for name in METHODS}
    values: dict[str, float | None] = {}
    for name, rho in rhos.items():
        values[f"{name} mean"], values[f"{name} max"] = float(rho.mean()), float(rho.max())
    curves = {name: rho.tolist() for name, rho in rhos.items()}
    curves[SAME] = (labels == labels[partner]).double().tolist()
    return Measurement(values, curves, count=len(features))


def mixtures(features: Tensor, partner: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Return per method the features (B, C, H, W) mixed with their partners' features."""
    _, channels, height, width = features.shape
    rate = seed_rate(GAMMA, BLOCK_SIZE, height, width)
    blocks = grow_blocks(bernoulli((1, channels, height, width), rate, generator, features.device), BLOCK_SIZE)
    everywhere = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    return {
        "manifold_mixup": mix_features(features, everywhere, partner, lam=LAM),
        "soft_patchup": mix_features(features, blocks, partner, lam=LAM),
        "hard_patchup": mix_features(features, blocks, partner, lam=None),
    }


def pairs(count: int, generator: torch.Generator) -> Tensor:
    """Return a random permutation without fixed points, int64 (count,)."""
    order = torch.randperm(count, generator=generator)
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    return partner


def angle_rho(first: Tensor, second: Tensor, mixed: Tensor) -> Tensor:
    """Return rho per pair in radians, float64 (B,)."""
    return angle(first, mixed) + angle(second, mixed) - angle(first, second)


def angle(first: Tensor, second: Tensor) -> Tensor:
    """Return the angle between flattened vectors, (B,), from half-angles: arccos is inaccurate for small angles."""
    a, b = (torch.nn.functional.normalize(x.flatten(1).double(), dim=1, eps=1e-300) for x in (first, second))
    return 2.0 * torch.atan2((a - b).norm(dim=1), (a + b).norm(dim=1))


def figure(rows: Sequence[ResultRow]) -> Figure:
    """Plot the angles of all pairs as swarms, one panel per row and one swarm per method; hollow for the same label."""
    chart, all_axes = panels(len(rows))
    highest = max(*(max(curve) for row in rows for method in METHODS for curve in row.curves[method]), 1e-6)
    for row, axes in zip(rows, all_axes):
        own = row.curves
        same = np.concatenate([np.asarray(curve) for curve in own[SAME]]) > 0 if SAME in own else None
        for place, method in enumerate(METHODS):
            angles = np.concatenate([np.asarray(curve) for curve in own[method]])
            hollow = np.zeros(len(angles), dtype=bool) if same is None else same
            across, colour = place + swarm(angles), f"C{place}"
            axes.scatter(across[~hollow], angles[~hollow], s=8, color=colour)
            axes.scatter(across[hollow], angles[hollow], s=14, facecolors="none", edgecolors=colour, label=SAME)
        axes.set_ylim(-0.05 * highest, 1.05 * highest)  # the same scale for all rows, so that they can be compared
        axes.set_xticks(range(len(METHODS)), [method.replace("_", " ") for method in METHODS])
        axes.set_title(row.label)
        axes.set_ylabel("rho, radians")
        axes.grid(True, axis="y")
    all_axes[0].legend(*(one[:1] for one in all_axes[0].get_legend_handles_labels()), fontsize="small")
    return chart


def swarm(values: np.ndarray, *, width: float = 0.4) -> np.ndarray:
    """Return horizontal offsets that place points of nearly equal value side by side."""
    offsets = np.zeros(len(values))
    span = np.ptp(values)
    levels = np.zeros(len(values), dtype=int) if span < 1e-6 else np.floor((values - values.min()) / span * 40)
    for level in np.unique(levels):
        members = np.flatnonzero(levels == level)
        order = np.arange(len(members))
        side = np.where(order % 2, 1, -1) * ((order + 1) // 2)
        offsets[members] = side * min(0.03, 2 * width / max(len(members), 1))
    return offsets


SUITE = Suite(
    name="geometry",
    title="Geometry of mixed features",
    unit="angle rho, radians",
    measure=measure,
    settings=settings,
    values=tuple(f"{method} {kind}" for method in METHODS for kind in ("mean", "max")),
    metrics=(Metric("rho", "radians", digits=4),),
    digits=4,
    figure=figure,
    check=check,
)
