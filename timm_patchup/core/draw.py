"""Drawing: what a method draws with, what it decided, and the record of it for one batch.

A method gets a ``DrawContext`` and returns a ``Change``; ``make_draw`` records it in the ``Draw`` of the batch.
``Mix`` and ``Erase`` are the changes that work at every site. Masks are (1 or B, 1 or C, H, W), whatever the layout of
the features; ``Draw.masks`` lays them out as the tensors have them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from ..errors import UserError, WrongType, unknown
from . import sampling
from .functional import erase_features, kept_fraction, mix_features
from .layout import FeatureMap, widest_of
from .renamed import renamed
from .settings import check_value

if TYPE_CHECKING:
    from .method import Method

INPUT = "input"
Value = TypeVar("Value")


@dataclass(frozen=True)
class DrawContext:
    """The site and the batch for which a method draws its change, with the distributions to draw from.

    Attributes:
        site: name of the site.
        sites: names of all sites of the method.
        shape: of the features there, (B, C, H, W), whatever their layout in memory.
        partner: int64, (B,), on ``device``: whom each sample is mixed with.
        generator: the generator of the batch, on the CPU.
        device: where the features are.
        images: at the input the batch itself, (B, C, H, W); elsewhere None.
        saliency: at the input, for a method that needs it, a function that runs the model and returns the saliency of
            the images, float32 (B, H, W); otherwise None.
    """

    site: str
    sites: tuple[str, ...]
    shape: tuple[int, int, int, int]
    partner: Tensor
    generator: torch.Generator
    device: torch.device
    images: Tensor | None = None
    saliency: Callable[[], Tensor] | None = None

    def everywhere(self) -> Tensor:
        """Return the mask that alters every feature: bool, (1, 1, 1, 1)."""
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.device)

    def beta(self, alpha: float) -> float:
        """Draw from Beta(alpha, alpha)."""
        return sampling.beta(alpha, self.generator)

    def lam(self, alpha: float, per: Literal["batch", "sample"]) -> float | Tensor:
        """Draw lam from Beta(alpha, alpha): one for the batch, or one per sample, (B,)."""
        if per == "batch":
            return self.beta(alpha)
        return sampling.betas(self.shape[0], alpha, self.generator).to(self.device, non_blocking=True)

    def choose(self, values: Sequence[Value]) -> Value:
        """Draw one of some values."""
        return values[sampling.integer(len(values), self.generator)]

    def rectangle(self, alpha: float) -> Tensor:
        """Draw CutMix's rectangle: bool, (1, 1, H, W)."""
        *_, height, width = self.shape
        return sampling.rectangle(height, width, alpha=alpha, generator=self.generator, device=self.device)

    def bernoulli(self, shape: tuple[int, ...], rate: float) -> Tensor:
        """Draw a bool mask of independent coins."""
        return sampling.bernoulli(shape, rate, self.generator, self.device)

    def per_site(self, values: Value | tuple[Value, ...]) -> Value:
        """Return the value for this site of a setting with one value for all sites, or one per site."""
        return values[self.sites.index(self.site)] if isinstance(values, tuple) else values


class Change(Protocol):
    """The change applied to a batch at one site: at the input to the images, inside a model to its features.

    It is made before the forward pass, with all its random numbers, and ``apply`` may look at the features. When a pass
    is recomputed ``apply`` is called again and must return the same; gradients are autograd's. Drawn numbers must be
    tensors or floats, so that torch.compile makes one graph per site: inside a model, ``apply`` gets floats as 0-d
    tensors.

    Attributes:
        changed: bool, (1, ...) for the batch or (B, ...), True where features are altered; broadcasts against them.
        lam: weight of the sample's own features inside the altered region, a number or (B,); 0 for a swap.
        kept: the paper's p_u, float32: fraction of the features not altered, 0-d, or (B,) with a mask per sample.
        mixes: whether partners take part, and the targets are mixed, too.
    """

    @property
    def changed(self) -> Tensor: ...
    @property
    def lam(self) -> float | Tensor: ...
    @property
    def kept(self) -> Tensor: ...
    @property
    def mixes(self) -> bool: ...

    def apply(self, features: Tensor, partner: Tensor) -> Tensor:
        """Return features (B, C, H, W) altered, in the same shape; they are not changed in place."""
        ...

    def check(self, batch_size: int) -> None:
        """Raise UserError if a change made by hand does not fit a batch of this size."""
        ...

    def for_splits(self, num_splits: int) -> "Change":
        """Return the change for a batch of ``num_splits`` splits of these samples, each altered alike."""
        ...


@dataclass(frozen=True)
class Mix:
    """Altered features become ``lam * own + (1 - lam) * partner's``; a swap with lam 0."""

    changed: Tensor
    lam: float | Tensor = 0.0
    mixes: ClassVar[bool] = True

    @cached_property
    def kept(self) -> Tensor:
        return kept_fraction(self.changed)

    def apply(self, features: Tensor, partner: Tensor) -> Tensor:
        return mix_features(features, self.changed, partner, lam=self.lam)

    def check(self, batch_size: int) -> None:
        require_mask(self.changed, batch_size)
        if isinstance(self.lam, Tensor) and self.lam.shape != (batch_size,):
            raise UserError(f"draw.lam has shape {tuple(self.lam.shape)}, the batch needs a number or ({batch_size},)")
        for lam in self.lam.tolist() if isinstance(self.lam, Tensor) else [self.lam]:
            check_value("draw.lam", lam, float, low=0, high=1)

    def for_splits(self, num_splits: int) -> "Mix":
        lam = self.lam.repeat(num_splits) if isinstance(self.lam, Tensor) else self.lam
        return replace(self, changed=_per_split(self.changed, num_splits), lam=lam)


@dataclass(frozen=True)
class Erase:
    """Altered features become zero, all others are multiplied by ``scale``, float32, 0-d; no partner takes part."""

    changed: Tensor
    scale: Tensor
    lam: ClassVar[float] = 0.0
    mixes: ClassVar[bool] = False

    @cached_property
    def kept(self) -> Tensor:
        return kept_fraction(self.changed)

    def apply(self, features: Tensor, partner: Tensor) -> Tensor:
        return erase_features(features, self.changed, scale=self.scale)

    def check(self, batch_size: int) -> None:
        require_mask(self.changed, batch_size)
        if not isinstance(self.scale, Tensor) or self.scale.ndim:
            raise WrongType(f"draw.change.scale must be a 0-d tensor, got {self.scale!r}")
        check_value("draw.change.scale", self.scale.item(), float, low=0)

    def for_splits(self, num_splits: int) -> "Erase":
        return replace(self, changed=_per_split(self.changed, num_splits))


def _per_split(changed: Tensor, num_splits: int) -> Tensor:
    """Repeat masks per sample for every split; one for the batch is one for all."""
    return changed if len(changed) == 1 else torch.cat([changed] * num_splits)


def require_mask(changed: Any, batch_size: int) -> None:
    """Raise UserError if the mask of a change made by hand does not fit a batch of this size."""
    if not isinstance(changed, Tensor) or changed.dtype is not torch.bool:
        given = changed.dtype if isinstance(changed, Tensor) else repr(changed)
        raise WrongType(f"draw.changed must be a bool mask of features, got {given}")
    if changed.shape[0] not in (1, batch_size):
        raise UserError(f"draw.changed holds {changed.shape[0]} masks, the batch needs 1 or {batch_size}")


@dataclass(frozen=True)
class Draw:
    """What was drawn for one batch. Kept until the next draw, so that a recomputed forward sees the same mask.

    Attributes:
        site: name of the site that is altered; None if the batch is left as it is.
        partner: int64, (B,), a permutation: sample ``i`` is mixed with sample ``partner[i]``; itself if nothing mixes.
        change: what happens there, with masks (1 or B, 1 or C, H, W) whatever the layout of the features; None if the
            batch is left as it is.
        layouts: where the features are in what each site gives; the mixer fills it in.
        method: the method that acted, also if it left the batch as it is; None if none was asked. The batch uses its
            objective.
        also: what happens at sites before ``site``, if a method erases features at several together.
    """

    site: str | None
    partner: Tensor
    change: Change | None = None
    layouts: Mapping[str, tuple[FeatureMap, ...]] = field(default_factory=dict, compare=False, repr=False)
    method: "Method | None" = None
    also: Mapping[str, Change] = field(default_factory=dict)

    @classmethod
    def nothing(cls, x: Tensor, method: "Method | None" = None) -> "Draw":
        """Return the draw of a batch that is left as it is."""
        return cls(None, torch.arange(len(x), device=x.device), method=method)

    @cached_property
    def changes(self) -> dict[str, Change]:
        """What happens at each site, mostly at one; empty if the batch is left as it is."""
        last = {} if self.site is None or self.change is None else {self.site: self.change}
        return {**self.also, **last}

    @cached_property
    def hidden(self) -> dict[str, Change]:
        """What happens at each site inside the model."""
        return {site: change for site, change in self.changes.items() if site != INPUT}

    @property
    def changed(self) -> Tensor | None:
        """The mask of what is altered; None if nothing is."""
        return None if self.change is None else self.change.changed

    @property
    def lam(self) -> float | Tensor:
        """Weight of the sample's own features inside the altered region: 0 for a swap, 1 if nothing is altered."""
        return 1.0 if self.change is None else self.change.lam

    @property
    def swaps(self) -> bool:
        """Whether the altered features are the partner's alone."""
        lam = self.lam
        return not isinstance(lam, Tensor) and lam == 0.0

    @cached_property
    def kept(self) -> Tensor:
        """The paper's p_u, float32: fraction of the features not altered, 0-d, or (B,) with a mask per sample."""
        if self.change is None or self.site is None:
            return torch.ones((), device=self.partner.device)
        layouts = self.layouts.get(self.site, ())
        if len(layouts) < 2 or not isinstance(self.change, (Mix, Erase)):
            return self.change.kept
        # Several tensors count by their number of features.
        total = sum(layout.size for layout in layouts)
        parts = [(layout.size / total, layout.fit(self.change.changed)) for layout in layouts if layout.size]
        return torch.stack([weight * kept_fraction(part) for weight, part in parts]).sum(dim=0)

    @property
    def mixes(self) -> bool:
        """Whether samples are mixed, and their targets with them; not if nothing is altered or features are erased."""
        return self.change is not None and self.change.mixes

    def check(self, batch_size: int, sites: Sequence[str]) -> None:
        """Raise UserError if a draw made by hand contradicts itself, the sites or a batch of this size."""
        if not isinstance(self.partner, Tensor) or self.partner.dtype is not torch.int64:
            raise WrongType(f"draw.partner must be an int64 tensor ({batch_size},), got {self.partner!r}")
        if self.partner.shape != (batch_size,):
            raise UserError(f"draw.partner has shape {tuple(self.partner.shape)}, the batch needs ({batch_size},)")
        if not torch.equal(self.partner.sort().values.cpu(), torch.arange(batch_size, device="cpu")):
            raise UserError(f"draw.partner must be a permutation of {batch_size} samples, got {self.partner.tolist()}")
        if (self.site is None) != (self.change is None):
            raise UserError(f"draw.site and draw.change must both be None or neither, got site {self.site!r}")
        if self.also and (self.site is None or self.site in self.also):
            raise UserError(f"draw.also is for other sites next to draw.site, got {list(self.also)} and {self.site!r}")
        if len(self.changes) > 1 and any(change.mixes for change in self.changes.values()):
            raise UserError("a draw that mixes samples has one site: draw.also and draw.change must erase features")
        for site, change in self.changes.items():
            if site not in sites:
                raise unknown("draw.site", site, sites)
            change.check(batch_size)

    def fitted(self, maps: Mapping[str, tuple[FeatureMap, ...]]) -> "Draw":
        """Return a draw to replay with the layouts of this model's sites.

        Raises:
            UserError: it was made for features of another size, which would be mixed elsewhere.
        """
        for site, change in self.changes.items():
            widest = widest_of(maps[site])
            needed = (widest.channels, widest.height, widest.width)
            given = tuple(change.changed.shape[1:])
            fits = len(given) == 3 and all(size in (1, wanted) for size, wanted in zip(given, needed))
            if not fits and (isinstance(change, (Mix, Erase)) or site != INPUT):
                raise UserError(
                    f"draw.changed has masks of {given}, but site {site!r} has features of {needed} (C, H, W) for "
                    f"these images: replay a draw with images of the size it was made for"
                )
        layouts = {site: maps[site] for site in self.changes}
        return self if self.layouts == layouts else replace(self, layouts=layouts)

    def for_splits(self, num_splits: int) -> "Draw":
        """Return the draw for a batch of ``num_splits`` splits of these samples, one after the other, altered alike."""
        if num_splits == 1:
            return self
        partner = torch.cat([self.partner + split * len(self.partner) for split in range(num_splits)])
        change = None if self.change is None else self.change.for_splits(num_splits)
        also = {site: other.for_splits(num_splits) for site, other in self.also.items()}
        return replace(self, partner=partner, change=change, also=also)

    def at_input(self, x: Tensor) -> Tensor:
        """Return the images as they are given to the model: altered if the input was drawn."""
        return self.changes[INPUT].apply(x, self.partner) if INPUT in self.changes else x

    def masks(self, site: str, *, expanded: bool = False) -> tuple[Tensor, ...]:
        """Return the mask of a Mix or an Erase for each tensor that a site gives, as that tensor has its features.

        What has no place on the grid is mixed as the targets are; if features are erased it stays as it is.

        Args:
            site: one of ``changes``.
            expanded: whether masks of mixes that are smaller than the features are expanded to their size.
        """
        change, layouts = self.changes[site], self.layouts[site]
        changed = change.changed
        if expanded and isinstance(change, Mix):
            widest = widest_of(layouts)
            changed = changed.expand(-1, widest.channels, widest.height, widest.width).contiguous()
        share = 1.0 - (1.0 / change.scale if isinstance(change, Erase) else self.kept)
        return tuple(layout.lay_out(layout.fit(changed), share) for layout in layouts)


def make_draw(
    x: Tensor,
    *,
    method: "Method",
    site_names: Sequence[tuple[str, ...]],
    maps: Mapping[str, tuple[FeatureMap, ...]],
    generator: torch.Generator,
    saliency: Callable[[], Tensor],
) -> Draw:
    """Return what happens to a batch. The order of random numbers is part of what a seed means.

    Args:
        x: the images, (B, C, H, W).
        method: one method, or several, one of which acts.
        site_names: the sites of each of ``method.members``.
        maps: what each site gives for images of this size.
        generator: the generator of the batch.
        saliency: returns the saliency of the images, float32 (B, H, W), for a method that asks for it.
    """
    member = method.choose(generator)
    if sampling.uniform(generator) >= member.prob:
        return Draw.nothing(x, member)
    sites = next(names for one, names in zip(method.members, site_names) if one is member)
    chosen = sites if member.at_all_sites else (sites[sampling.integer(len(sites), generator)],)
    partner = torch.randperm(len(x), generator=generator, device="cpu").to(x.device, non_blocking=True)
    changes: dict[str, Change] = {}
    for site in chosen:
        widest = widest_of(maps[site])
        changes[site] = member.change(
            DrawContext(
                site=site,
                sites=sites,
                shape=(len(x), widest.channels, widest.height, widest.width),
                partner=partner,
                generator=generator,
                device=x.device,
                images=x.detach() if site == INPUT else None,
                saliency=saliency if member.needs_saliency and site == INPUT else None,
            )
        )
    if not any(change.mixes for change in changes.values()):
        partner = torch.arange(len(x), device=x.device)
    last = chosen[-1]
    layouts = {site: maps[site] for site in chosen}
    return Draw(last, partner, changes.pop(last), layouts, member, changes)


if not TYPE_CHECKING:  # otherwise mypy takes every name of the module for an old one
    __getattr__ = renamed(__name__, Place=DrawContext)
