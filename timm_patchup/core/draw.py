"""What a method decided: a Change, and the Draw that records it for one batch. ``make_draw.py`` makes them.

``Mix`` and ``Erase`` are the changes that work at every site. Masks are (1 or B, 1 or C, H, W), whatever the layout of
the features; ``Draw.masks`` lays them out as the tensors have them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from ..errors import UserError, WrongType, unknown
from .functional import erase_features, kept_fraction, mix_features
from .layout import FeatureMap, widest_of
from .settings import check_value

if TYPE_CHECKING:
    from .method import Method


class Change(Protocol):
    """What a batch is subjected to at its site. ``Mix`` and ``Erase`` work at every site, others at the input.

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

    def apply(self, x: Tensor, partner: Tensor) -> Tensor:
        """Return the features altered; ``x`` is not changed in place."""
        ...

    def check(self, batch_size: int) -> None:
        """Raise UserError if a change made by hand does not fit a batch of this size."""
        ...

    def for_splits(self, num_splits: int) -> "Change":
        """Return the change for a batch of that many splits of these samples, each altered alike."""
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

    def apply(self, x: Tensor, partner: Tensor) -> Tensor:
        return mix_features(x, self.changed, partner, lam=self.lam)

    def check(self, batch_size: int) -> None:
        check_mask(self.changed, batch_size)
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

    def apply(self, x: Tensor, partner: Tensor) -> Tensor:
        return erase_features(x, self.changed, scale=self.scale)

    def check(self, batch_size: int) -> None:
        check_mask(self.changed, batch_size)
        if not isinstance(self.scale, Tensor) or self.scale.ndim:
            raise WrongType(f"draw.change.scale must be a 0-d tensor, got {self.scale!r}")
        check_value("draw.change.scale", self.scale.item(), float, low=0)

    def for_splits(self, num_splits: int) -> "Erase":
        return replace(self, changed=_per_split(self.changed, num_splits))


def _per_split(changed: Tensor, num_splits: int) -> Tensor:
    """Repeat masks per sample for every split; one for the batch is one for all."""
    return changed if len(changed) == 1 else torch.cat([changed] * num_splits)


def check_mask(changed: Any, batch_size: int) -> None:
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
        layouts: where the features are in what the site gives; the mixer fills it in.
        method: whose turn it was, also if it left the batch as it is; None if none was asked. Its objective is that of
            the batch.
        others: what happens at the other sites, if a method erases features at several together.
    """

    site: str | None
    partner: Tensor
    change: Change | None = None
    layouts: tuple[FeatureMap, ...] = field(default=(), compare=False, repr=False)
    method: "Method | None" = None
    others: tuple["Draw", ...] = ()

    @classmethod
    def nothing(cls, x: Tensor, method: "Method | None" = None) -> "Draw":
        """Return the draw of a batch that is left as it is."""
        return cls(None, torch.arange(len(x), device=x.device), method=method)

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
        return not isinstance(self.lam, Tensor) and self.lam == 0.0

    @cached_property
    def kept(self) -> Tensor:
        """The paper's p_u, float32: fraction of the features not altered, 0-d, or (B,) with a mask per sample."""
        if self.change is None:
            return torch.ones((), device=self.partner.device)
        sizes = [layout.size for layout in self.layouts]
        if len(sizes) < 2:
            return self.change.kept
        # Several tensors count by their number of features.
        parts = [layout.fit(self.change.changed) for layout in self.layouts if layout.size]
        weights = [size / sum(sizes) for size in sizes if size]
        return torch.stack([weight * kept_fraction(part) for weight, part in zip(weights, parts)]).sum(dim=0)

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
        if self.change is not None:
            if self.site not in sites:
                raise unknown("draw.site", self.site, sites)
            self.change.check(batch_size)
        for other in self.others:
            other.check(batch_size, sites)
            if self.mixes or other.mixes or other.others or other.site in (None, self.site):
                raise UserError("draw.others must erase features at other sites, next to a draw that erases, too")

    def fitted(self, maps: Mapping[str, tuple[FeatureMap, ...]]) -> "Draw":
        """Return a draw to replay with the layouts of this model's sites.

        Raises:
            UserError: it was made for features of another size.
        """
        layouts = maps[self.site] if self.site else ()
        self.check_layouts(layouts)
        others = tuple(other.fitted(maps) for other in self.others)
        same = self.layouts == layouts and all(new is old for new, old in zip(others, self.others))
        return self if same else replace(self, layouts=layouts, others=others)

    def for_splits(self, num_splits: int) -> "Draw":
        """Return the draw for a batch of that many splits of these samples, one after the other, all altered alike."""
        if num_splits == 1:
            return self
        partner = torch.cat([self.partner + split * len(self.partner) for split in range(num_splits)])
        change = None if self.change is None else self.change.for_splits(num_splits)
        others = tuple(other.for_splits(num_splits) for other in self.others)
        return replace(self, partner=partner, change=change, others=others)

    def check_layouts(self, layouts: Sequence[FeatureMap]) -> None:
        """Raise UserError if a draw to replay was made for features of another size, which would be mixed elsewhere."""
        if not isinstance(self.change, (Mix, Erase)):
            return
        widest = widest_of(tuple(layouts))
        needed = (widest.channels, widest.height, widest.width)
        given = tuple(self.change.changed.shape[1:])
        if len(given) != 3 or any(size not in (1, wanted) for size, wanted in zip(given, needed)):
            raise UserError(
                f"draw.changed has masks of {given}, but site {self.site!r} has features of {needed} (C, H, W) for "
                f"these images: replay a draw with images of the size it was made for"
            )

    def masks(self, *, alike: bool = False) -> tuple[Tensor, ...]:
        """Return the mask of each tensor that the site gives, as that tensor has its features.

        What has no place on the grid is mixed as the targets are; if features are erased it stays as it is.

        Args:
            alike: whether masks of mixes that are smaller than the features are expanded to their size.
        """
        change = self.change
        if change is None:
            return ()
        changed = change.changed
        if alike and isinstance(change, Mix):
            widest = widest_of(self.layouts)
            changed = changed.expand(-1, widest.channels, widest.height, widest.width).contiguous()
        share = 1.0 - (1.0 / change.scale if isinstance(change, Erase) else self.kept)
        return tuple(layout.lay_out(layout.fit(changed), share) for layout in self.layouts)
