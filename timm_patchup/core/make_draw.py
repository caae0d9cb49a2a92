"""Make the ``Draw`` of a batch: which method acts, whether it does, at which site, with which partners, and its change.

The class is in ``draw.py``, the random numbers come from ``sampling.py``. Their order is part of what a seed means:
another one would change every run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from . import sampling
from .draw import Draw
from .layout import FeatureMap, widest_of
from .method import INPUT, Method, Place


def make_draw(
    x: Tensor,
    *,
    method: Method,
    site_names: Sequence[tuple[str, ...]],
    maps: Mapping[str, tuple[FeatureMap, ...]],
    generator: torch.Generator,
    saliency: Callable[[], Tensor],
) -> Draw:
    """Return what happens to a batch.

    Args:
        x: the images, (B, C, H, W).
        method: one method, or several of which one acts.
        site_names: the sites of each of ``method.members``.
        maps: what each site gives for images of this size.
        generator: the batch's own.
        saliency: returns that of the images, float32 (B, H, W), for a method that asks for it.
    """
    member = method.choose(generator)
    if sampling.uniform(generator) >= member.prob:
        return Draw.nothing(x, member)
    sites = next(names for one, names in zip(method.members, site_names) if one is member)
    chosen = sites if member.at_all_sites else (sites[sampling.integer(len(sites), generator)],)
    partner = torch.randperm(len(x), generator=generator, device="cpu").to(x.device, non_blocking=True)

    def draw_at(site: str) -> Draw:
        widest = widest_of(maps[site])
        place = Place(
            site=site,
            sites=sites,
            shape=(len(x), widest.channels, widest.height, widest.width),
            partner=partner,
            generator=generator,
            device=x.device,
            images=x.detach() if site == INPUT else None,
            saliency=saliency if member.needs_saliency and site == INPUT else None,
        )
        change = member.change(place)
        own = partner if change.mixes else torch.arange(len(x), device=x.device)
        return Draw(site, own, change, maps[site], member)

    *others, last = map(draw_at, chosen)
    return replace(last, others=tuple(others)) if others else last
