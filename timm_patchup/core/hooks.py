"""The part of a mixer that is inside the model: one hook per site, all reading the one draw that is armed.

A hook copied with its model (EMA, deepcopy, pickle) is inert: only the model that a mixer was made for is altered.
"""

from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from .compiling import OwnForward, allow_graphs, indices_of_graph, mask_of_graph
from .draw import Draw, Erase, Mix
from .functional import erase_features, like_memory, mix_features
from .layout import by_sample, features_in, with_features
from .method import INPUT
from .sites import Site, site_module


class Armed:
    """The draw that the next forward pass applies. Flat tensors, so that torch.compile guards on ``site`` alone."""

    changed: tuple[Tensor, ...]
    partner: Tensor
    inverse: Tensor
    lam: Tensor | None
    scale: Tensor | None
    others: dict[str, tuple[tuple[Tensor, ...], Tensor]]  # masks and scale of sites that are erased next to ``site``
    traced: ClassVar[set[tuple[type[nn.Module], str | None]]] = set()

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.disarm()

    def disarm(self) -> None:
        self.site: str | None = None
        self.pending: str | None = None
        self.others = {}
        self.applied = self.ran = False

    def load(self, draw: Draw, images: Tensor, *, alike: bool = False) -> None:
        """Arm a draw; one at the input, or none at all, leaves nothing for the hooks to do.

        Args:
            draw: the draw.
            images: of the batch: features have their memory format.
            alike: whether swaps and mixes of several methods look the same, so that they share a compiled graph: there
                is one per site and kind, and torch.compile makes eight at most.
        """
        self.disarm()
        change = draw.change
        if change is None or draw.site == INPUT:
            return
        if not isinstance(change, (Mix, Erase)):
            raise TypeError(
                f"{type(change).__name__} acts on images only: at site {draw.site!r} return Mix or Erase, "
                f"or act at the input"
            )
        self.changed = _masks(draw, images, alike=alike)
        self.partner, self.inverse = indices_of_graph(draw.partner)
        # As a tensor, lam is an input of a compiled graph; as a number it would be a new graph for each batch.
        lam = change.lam if isinstance(change.lam, Tensor) else torch.full((), change.lam, device=draw.partner.device)
        self.lam = None if draw.swaps and not alike else lam
        self.scale = change.scale if isinstance(change, Erase) else None
        for other in draw.others:
            if other.site not in (None, INPUT) and isinstance(other.change, Erase):
                self.others[other.site] = _masks(other, images), other.change.scale
        self.site = self.pending = draw.site

    def unapplied(self) -> str | None:
        """Return the site whose draw no forward pass has applied yet.

        Eager code marks the draw when it applies it. A compiled graph cannot: a side effect inside a checkpointed
        region breaks it. There, the site is noted while the graph is traced, and the pass when the model ends. Models
        of one class share graphs, so they share the notes.
        """
        if self.applied or (self.ran and (type(self.model), self.pending) in self.traced):
            return None
        return self.pending

    @torch.compiler.assume_constant_result
    def note_traced(self, site: str) -> None:
        self.traced.add((type(self.model), site))


def _masks(draw: Draw, images: Tensor, *, alike: bool = False) -> tuple[Tensor, ...]:
    """Return the mask of each tensor of a site, in the memory format of the images, which the features have, too.

    A mask that got it inside a compiled graph would be fused into the loop over the features, and read across its rows.
    """
    masks = zip(draw.masks(alike=alike), draw.layouts)
    return tuple(mask_of_graph(like_memory(mask, images) if layout.nchw else mask) for mask, layout in masks)


class SiteHook:
    """Forward hook at one site: alters the output if this site is the armed one and the model trains."""

    def __init__(self, armed: Armed | None, site: str) -> None:
        self.armed = armed
        self.site = site

    def __call__(self, module: nn.Module, args: object, output: Any) -> Any:
        armed = self.armed
        # `training` first: compiled eval graphs must not depend on what is armed.
        if armed is None or not armed.model.training or armed.site is None:
            return None
        if armed.site == self.site:
            masks, scale = armed.changed, armed.scale
        elif self.site in armed.others:
            masks, scale = armed.others[self.site]
        else:
            return None
        features = features_in(output)
        if len(features) != len(masks):
            raise RuntimeError(
                f"site {self.site!r} gives {len(features)} tensors in training, but {len(masks)} in eval mode: "
                f"leave it out of sites"
            )
        altered = [self._alter(armed, tensor, changed, scale) for tensor, changed in zip(features, masks)]
        if torch.compiler.is_compiling():
            armed.note_traced(self.site)
        elif armed.site == self.site:  # the last of several sites
            armed.applied = True
        return with_features(output, altered)

    def _alter(self, armed: Armed, output: Tensor, changed: Tensor, scale: Tensor | None) -> Tensor:
        """Return one tensor of features altered."""
        partner = armed.partner
        rows = by_sample(output, len(partner)) if len(output) % len(partner) == 0 else output
        fits = all(size in (1, wanted) for size, wanted in zip(changed.shape[1:], rows.shape[1:]))
        if rows.shape[0] != partner.shape[0] or rows.ndim != changed.ndim or not fits:
            raise RuntimeError(
                f"features at site {self.site!r} have shape {tuple(output.shape)}, but the draw was made for a batch "
                f"of {partner.shape[0]} with {tuple(changed.shape[1:])}: call x, target = mix(x, target) before every "
                f"training forward pass, and put others under `with mix.paused():`"
            )
        if scale is not None:
            rows = erase_features(rows, changed, scale=scale)
        else:
            rows = mix_features(rows, changed, partner, lam=armed.lam, inverse=armed.inverse)
        return rows if len(output) == len(partner) else rows.view(output.shape)

    def __deepcopy__(self, memo: dict[int, object]) -> "SiteHook":
        return type(self)(None, self.site)

    def __reduce__(self) -> tuple[type["SiteHook"], tuple[None, str]]:
        return type(self), (None, self.site)


class EndHook(SiteHook):
    """Forward hook of the whole model: notes that a training pass ran while something was armed."""

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        armed = self.armed
        if armed is not None and armed.model.training and armed.site is not None:
            armed.ran = True


class Handle(Protocol):
    """What is attached to a model, and can be taken off."""

    def remove(self) -> None: ...


def attach(model: nn.Module, sites: list[Site], armed: Armed) -> list[Handle]:
    """Hook every site inside the model, and the model itself if a site is inside.

    Raises:
        ValueError: another mixer is attached to the model.
    """
    for module in model.modules():
        for hook in module._forward_hooks.values():
            if isinstance(hook, SiteHook) and hook.armed is not None:
                raise ValueError("the model already has a mixer: call detach() on that one first")
    handles: list[Handle] = []
    for site in sites:
        if site.module_name:
            module = site_module(model, site)
            handles += [OwnForward(module), module.register_forward_hook(SiteHook(armed, site.name))]
    if handles:
        handles.append(model.register_forward_hook(EndHook(armed, "")))
        allow_graphs(1 + sum(bool(site.module_name) for site in sites))
    return handles


def refuse_wrapped(model: nn.Module) -> None:
    """Raise TypeError if hooks would not run, or not on this module: wrapped, compiled or scripted models."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    kind = type(model).__name__
    order = "make the mixer first, then compile, then wrap"
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"model is a {kind}: hooks do not run in TorchScript, give the model before scripting")
    if isinstance(model, torch._dynamo.OptimizedModule) or model._compiled_call_impl is not None:
        raise TypeError(f"model is compiled: hooks added now would be ignored. Give the plain model; {order}")
    if isinstance(getattr(model, "module", None), nn.Module) and "Parallel" in kind:
        raise TypeError(f"model is wrapped in {kind}: give model.module; {order}")
