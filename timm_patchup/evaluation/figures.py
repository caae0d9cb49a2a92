"""The figures of a report, one PNG each: bars, curves over eps, sorted activations, swarms of angles."""

from collections.abc import Callable, Sequence
from io import BytesIO
from math import ceil
from typing import Any

import numpy as np

from .fgsm import EPSILONS
from .geometry import METHODS
from .results import Entry, Results
from .rows import Row, curves_of, make_rows, values_of

Entries = dict[str, Entry]


def draw_figures(results: Results) -> dict[str, bytes]:
    """Return the PNG of every suite that has a figure and results."""
    drawn = {}
    for suite, draw in _DRAWERS.items():
        rows = make_rows(results, suite)
        if rows:
            drawn[suite] = _png(draw(results.suites[suite], rows))
    return drawn


def _bars(entries: Entries, rows: Sequence[Row], *, ylabel: str, leave: str = "") -> Any:
    figure, axes = _figure()
    values = [values_of(row, entries) for row in rows]
    keys = [key for key in values[0] if not (leave and leave in key)]
    width = 0.8 / len(rows)
    for number, (row, own) in enumerate(zip(rows, values)):
        numbers = [own.get(key) for key in keys]
        heights = [n.mean if n else 0.0 for n in numbers]
        errors = [n.std or 0.0 if n else 0.0 for n in numbers] if len(row.members) > 1 else None
        places = np.arange(len(keys)) + (number - (len(rows) - 1) / 2) * width
        axes.bar(places, heights, width, yerr=errors, capsize=2, label=row.label)
    axes.set_xticks(range(len(keys)), [key.replace("_", " ") for key in keys], rotation=45, ha="right")
    axes.set_ylabel(ylabel)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def _fgsm(entries: Entries, rows: Sequence[Row]) -> Any:
    figure, axes = _figure()
    for row in rows:
        own = values_of(row, entries)
        numbers = [own[f"{eps:g}"] for eps in EPSILONS]
        means = [n.mean if n else float("nan") for n in numbers]
        errors = [n.std or 0.0 if n else 0.0 for n in numbers] if len(row.members) > 1 else None
        axes.errorbar(EPSILONS, means, yerr=errors, marker="o", markersize=3, capsize=2, label=row.label)
    spaces = sorted({entry["settings"]["eps_space"] for entry in entries.values()})
    axes.set_xlabel(f"eps ({', '.join(spaces)})")
    axes.set_ylabel("accuracy, %")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def _activations(entries: Entries, rows: Sequence[Row]) -> Any:
    curves = [curves_of(row, entries) for row in rows]
    sites = list(dict.fromkeys(site for own in curves for site in own))
    figure, panels = _panels(len(sites))
    for site, axes in zip(sites, panels):
        for row, own in zip(rows, curves):
            members = own.get(site, [])
            if members and len({len(curve) for curve in members}) == 1:
                axes.plot(np.mean(members, axis=0), label=row.label)
        axes.set_title(site)
        axes.set_xlabel("channel, sorted")
        axes.set_ylabel("mean |activation|")
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    return figure


def _geometry(entries: Entries, rows: Sequence[Row]) -> Any:
    figure, panels = _panels(len(rows))
    every = [max(curve) for row in rows for curves in curves_of(row, entries).values() for curve in curves]
    highest = max(*every, 1e-6)
    for row, axes in zip(rows, panels):
        for place, method in enumerate(METHODS):
            angles = np.concatenate([np.asarray(curve) for curve in curves_of(row, entries)[method]])
            axes.scatter(place + swarm(angles), angles, s=6)
        axes.set_ylim(-0.05 * highest, 1.05 * highest)  # one scale for all rows, so that they can be compared
        axes.set_xticks(range(len(METHODS)), [method.replace("_", " ") for method in METHODS])
        axes.set_title(row.label)
        axes.set_ylabel("rho, radians")
        axes.grid(axis="y", alpha=0.3)
    return figure


def swarm(values: np.ndarray, *, width: float = 0.4) -> np.ndarray:
    """Return how far to move each point aside so that points of nearly the same value lie beside each other."""
    offsets = np.zeros(len(values))
    span = np.ptp(values)
    levels = np.zeros(len(values), dtype=int) if span < 1e-6 else np.floor((values - values.min()) / span * 40)
    for level in np.unique(levels):
        members = np.flatnonzero(levels == level)
        order = np.arange(len(members))
        side = np.where(order % 2, 1, -1) * ((order + 1) // 2)
        offsets[members] = side * min(0.03, 2 * width / max(len(members), 1))
    return offsets


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    return figure, figure.subplots()


def _panels(count: int) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    columns = min(count, 3)
    lines = ceil(count / columns)
    figure = Figure(figsize=(4.5 * columns, 3.6 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for empty in panels[count:]:
        empty.set_axis_off()
    return figure, panels


def _png(figure: Any) -> bytes:
    content = BytesIO()
    figure.savefig(content, dpi=110, format="png")
    return content.getvalue()


def _affine(entries: Entries, rows: Sequence[Row]) -> Any:
    return _bars(entries, rows, ylabel="error, %")


def _corruptions(entries: Entries, rows: Sequence[Row]) -> Any:
    return _bars(entries, rows, ylabel="E_c, sum of errors in %", leave="mean error")


def _attacks(entries: Entries, rows: Sequence[Row]) -> Any:
    return _bars(entries, rows, ylabel="accuracy within 8/255, %", leave="distance")


_DRAWERS: dict[str, Callable[[Entries, Sequence[Row]], Any]] = {
    "affine": _affine,
    "fgsm": _fgsm,
    "activations": _activations,
    "geometry": _geometry,
    "corruptions": _corruptions,
    "attacks": _attacks,
}
