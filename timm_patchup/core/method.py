"""What a method is: a value that decides, batch by batch, what is altered. And what it decided: a Change, in a Draw.

A ``Method`` holds settings only, no model and no tensor, so it can be compared, printed and stored. The mixer asks it
for a ``Change`` at a ``Place``; ``Mix`` and ``Erase`` are the two that work at every site. The registry at the end of
the file is what ``list_methods`` and ``create_mixer`` know.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from ..errors import UserError, WrongType, nearest, unknown
from . import sampling
from .functional import Objective, erase_features, kept_fraction, mix_features
from .layout import FeatureMap
from .settings import Checked, Setting, check_value, raise_together, setting, settings_of

INPUT = "input"
PAPER_SITES = (INPUT, "stem", "stage1", "stage2")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Place:
    """Where a method decides what is altered, and what it can draw with.

    Attributes:
        site: name of the site.
        sites: names of all sites of the mixer.
        shape: of the features there, (B, C, H, W), whatever their layout in memory.
        partner: int64, (B,), on ``device``: whom each sample is mixed with.
        generator: the batch's own, on the CPU.
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
        """Return this site's own value of a setting that has one for all sites, or one per site."""
        return values[self.sites.index(self.site)] if isinstance(values, tuple) else values


class Change(Protocol):
    """What a batch is subjected to at its site. ``Mix`` and ``Erase`` work at every site, others at the input.

    Attributes:
        changed: bool, (1, ...) for the batch or (B, ...), True where features are altered; broadcasts against them.
        lam: weight of the sample's own features inside the altered region; 0 for a swap.
        kept: the paper's p_u, float32: fraction of the features not altered, 0-d, or (B,) with a mask per sample.
        mixes: whether partners take part, and the targets are mixed, too.
    """

    @property
    def changed(self) -> Tensor: ...
    @property
    def lam(self) -> float: ...
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


@dataclass(frozen=True)
class Mix:
    """Altered features become ``lam * own + (1 - lam) * partner's``; a swap with lam 0."""

    changed: Tensor
    lam: float = 0.0
    mixes: ClassVar[bool] = True

    @cached_property
    def kept(self) -> Tensor:
        return kept_fraction(self.changed)

    def apply(self, x: Tensor, partner: Tensor) -> Tensor:
        return mix_features(x, self.changed, partner, lam=self.lam)

    def check(self, batch_size: int) -> None:
        check_mask(self.changed, batch_size)
        check_value("draw.lam", self.lam, float, low=0, high=1)


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
    """

    site: str | None
    partner: Tensor
    change: Change | None = None
    layouts: tuple[FeatureMap, ...] = field(default=(), compare=False, repr=False)

    @property
    def changed(self) -> Tensor | None:
        """The mask of what is altered; None if nothing is."""
        return None if self.change is None else self.change.changed

    @property
    def lam(self) -> float:
        """Weight of the sample's own features inside the altered region: 0 for a swap, 1 if nothing is altered."""
        return 1.0 if self.change is None else self.change.lam

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
        if not torch.equal(self.partner.sort().values.cpu(), torch.arange(batch_size)):
            raise UserError(f"draw.partner must be a permutation of {batch_size} samples, got {self.partner.tolist()}")
        if (self.site is None) != (self.change is None):
            raise UserError(f"draw.site and draw.change must both be None or neither, got site {self.site!r}")
        if self.change is not None:
            if self.site not in sites:
                raise unknown("draw.site", self.site, sites)
            self.change.check(batch_size)

    def masks(self) -> tuple[Tensor, ...]:
        """Return the mask of each tensor that the site gives, as that tensor has its features.

        What has no place on the grid is mixed as the targets are; if features are erased it stays as it is.
        """
        change = self.change
        if change is None:
            return ()
        share = 1.0 - (1.0 / change.scale if isinstance(change, Erase) else self.kept)
        return tuple(layout.lay_out(layout.fit(change.changed), share) for layout in self.layouts)


@dataclass(frozen=True, kw_only=True)
class Method(Checked):
    """Base of all methods: at the input of any model. A subclass defines ``change`` and declares its settings.

    Attributes:
        name: under which it is registered.
        default_sites: the sites it acts at unless its settings name others.
        needs_saliency: whether it asks for the saliency of the images, for which the model runs once more.
    """

    name: ClassVar[str] = ""
    default_sites: ClassVar[tuple[str, ...]] = (INPUT,)
    needs_saliency: ClassVar[bool] = False

    prob: float = setting(1.0, "probability that a batch is altered", low=0, high=1)

    @property
    def objective(self) -> Objective:
        """``"paper"`` for L1 + L2, ``"l1"`` or ``"l2"`` for one of the two terms; a subclass may make it a setting."""
        return "l2"

    @property
    def site_names(self) -> tuple[str, ...] | None:
        """The sites that the settings name, None for the default ones as far as a model has them."""
        return self.default_sites

    def check_sites(self, names: Sequence[str]) -> None:
        """Raise UserError if settings do not fit the sites of a model."""

    def change(self, place: Place) -> Change:
        """Draw what happens to a batch at a place: the one thing a method must define.

        Masks are bool, (1 or B, 1 or C, H, W), or (1, 1, 1, 1) for everything, made on ``place.device``.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SiteMethod(Method):
    """Base of methods that act at a random site inside the model."""

    default_sites: ClassVar[tuple[str, ...]] = PAPER_SITES

    sites: tuple[str, ...] | None = setting(
        None, "names of sites or modules, one of which is chosen per batch; none for the default set"
    )

    @property
    def site_names(self) -> tuple[str, ...] | None:
        return self.sites


_METHODS: dict[str, type[Method]] = {}
AnyMethod = TypeVar("AnyMethod", bound=type[Method])


def register_method(name: str) -> Callable[[AnyMethod], AnyMethod]:
    """Register a method under a name: a decorator for a frozen dataclass that derives from Method or SiteMethod.

    Example:
        >>> @register_method("swap_all")
        ... @dataclass(frozen=True, kw_only=True)
        ... class SwapAll(SiteMethod):
        ...     def change(self, place):
        ...         return Mix(place.everywhere())
    """

    def register(kind: AnyMethod) -> AnyMethod:
        if name in _METHODS:
            raise UserError(f"method {name!r} is already registered, by {_METHODS[name].__qualname__}")
        parameters = vars(kind).get("__dataclass_params__")
        if not (isinstance(kind, type) and issubclass(kind, Method) and parameters and parameters.frozen):
            raise WrongType(f"method {name!r} must be a frozen dataclass derived from Method, got {kind!r}")
        kind.name = name
        _METHODS[name] = kind
        return kind

    return register


def list_methods() -> list[str]:
    """Return the names of all methods, sorted."""
    return sorted(_METHODS)


def method_type(name: str) -> type[Method]:
    """Return the class of a method; raise UserError with the nearest names if there is none."""
    if name not in _METHODS:
        raise unknown("method", name, list_methods())
    return _METHODS[name]


def method_settings(name: str) -> dict[str, Setting]:
    """Return the settings of a method by name, sorted."""
    declared = settings_of(method_type(name))
    return {key: declared[key] for key in sorted(declared)}


def make_method(name: str, **settings: Any) -> Method:
    """Make a method of the registry.

    Args:
        name: one of ``list_methods()``.
        **settings: settings that differ from the method's defaults.

    Raises:
        UserError: unknown method or setting, or a value outside of its range.

    Example:
        >>> make_method("manifold_mixup", alpha=1.5).prob
        1.0
    """
    known = method_settings(name)
    for key in settings:
        if key not in known:
            raise unknown(f"setting of {name}", key, known)
    return method_type(name)(**settings)


def read_method(name: str, values: Mapping[str, Any], *, prefix: str = "") -> Method:
    """Make a method from the values of a file or of flags, in which ``5e-1`` may be a word.

    Args:
        name: one of ``list_methods()``.
        values: settings by name.
        prefix: what the user writes in front of their names.

    Raises:
        UserError: everything that is wrong, in the user's words.
    """
    if name not in _METHODS:
        raise UserError(f"mix: unknown method {name!r}{nearest(name, list_methods())}")
    known, errors, checked = method_settings(name), list[UserError](), dict[str, Any]()
    for key, value in values.items():
        if key not in known:
            has = f"it has {', '.join(prefix + other for other in known)}" if known else "it has none"
            errors.append(UserError(f"{prefix}{key} is not a setting of {name}; {has}"))
            continue
        try:
            checked[key] = known[key].check(known[key].from_text(value), called=prefix + key)
        except UserError as error:
            errors.append(error)
    raise_together(errors)
    return make_method(name, **checked)
