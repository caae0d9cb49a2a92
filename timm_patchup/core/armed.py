"""The draw of a batch as the hooks of its model read it: flat tensors, made by the mixer before the forward pass.

What gradient checkpointing recomputes in a backward pass has the draw of its own forward pass, whatever is armed by
then.
"""

from collections.abc import Iterable
from copy import copy
from functools import partial
from typing import Any, ClassVar, Protocol
from weakref import ref

import torch
from torch import Tensor, nn

from .compiling import indices_of_graph, mask_of_graph
from .draw import Draw, Erase, Mix
from .functional import like_memory
from .method import INPUT


class Handle(Protocol):
    """What is attached to a model, and can be taken off."""

    def remove(self) -> None: ...


class BatchImages:
    """Which tensors of images belong to the batch that was mixed last, and which to batches before it."""

    def __init__(self) -> None:
        self._number = 0
        self._known: dict[int, tuple[ref[Tensor], int]] = {}  # by id, as long as the tensor lives

    def begin(self, *images: Tensor) -> None:
        """Note the images of the next batch, as they came and as they were returned."""
        self._number += 1
        for tensor in images:
            self._known[id(tensor)] = ref(tensor, partial(self._forget, id(tensor))), self._number

    def are_of_another(self, images: object) -> bool:
        """Whether images are known to be another batch than the last; of copies and others nothing is known."""
        known = self._known.get(id(images))
        return known is not None and known[0]() is images and known[1] != self._number

    def _forget(self, key: int, dead: "ref[Tensor]") -> None:
        if key in self._known and self._known[key][0] is dead:
            del self._known[key]

    def __reduce__(self) -> tuple[type["BatchImages"], tuple[()]]:
        return type(self), ()  # a copy has seen no batch


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
        self.handles: list[Handle] = []
        self.detached = False
        self.images = BatchImages()
        self._recomputed: tuple[int, Armed] | None = None
        self.disarm()

    def detach(self) -> None:
        """Take every hook off the model, for good."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.disarm()
        self.detached = True

    def disarm(self) -> None:
        self.site: str | None = None
        self.pending: str | None = None
        self.others = {}
        self.applied = self.began = self.ran = False
        self._passed: set[str] | None = None  # sites that an eager forward pass has reached; None outside of one

    def load(self, draw: Draw, images: Tensor, *, alike: bool = False) -> None:
        """Arm a draw; one at the input, or none at all, leaves nothing for the hooks to do.

        Args:
            draw: the draw.
            images: of the batch: features have their memory format.
            alike: whether swaps and mixes of several methods look the same, so that they share a compiled graph: there
                is one per site and kind, and torch.compile makes eight at most.
        """
        self.disarm()
        inside = [part for part in (*draw.others, draw) if part.site not in (None, INPUT)]
        if not inside:
            return
        *others, last = inside
        change = last.change
        if not isinstance(change, (Mix, Erase)):
            raise TypeError(
                f"{type(change).__name__} acts on images only: at site {last.site!r} return Mix or Erase, "
                f"or act at the input"
            )
        self.changed = _masks(last, images, alike=alike)
        self.partner, self.inverse = indices_of_graph(last.partner)
        # As a tensor, lam is an input of a compiled graph; as a number it would be a new graph for each batch.
        lam, device = change.lam, last.partner.device
        lam = lam if isinstance(lam, Tensor) else torch.full((), lam, dtype=torch.float32, device=device)
        self.lam = None if last.swaps and not alike else lam
        self.scale = change.scale if isinstance(change, Erase) else None
        for other in others:
            assert other.site is not None
            if not isinstance(other.change, Erase) or self.scale is None:
                raise TypeError(f"features at several sites together ({other.site}, {last.site}) can only be erased")
            self.others[other.site] = _masks(other, images), other.change.scale
        self.site = self.pending = last.site

    @property
    def was_applied(self) -> bool:
        """Whether a forward pass has applied the draw.

        Eager code marks the draw when it applies it. A compiled graph cannot: a side effect inside a checkpointed
        region breaks it. There, the site is noted while the graph is traced, and the pass when the model ends. Models
        of one class share graphs, so they share the notes; whether this model still has the hook is seen to elsewhere.
        """
        return self.applied or (self.ran and (type(self.model), self.pending) in self.traced)

    def begin_pass(self, inputs: Iterable[object]) -> None:
        """Begin an eager forward pass of the model.

        Raises:
            RuntimeError: its input is known to be another batch than the one that was drawn for.
        """
        if _is_recomputing():
            return
        if any(self.images.are_of_another(value) for value in inputs):
            raise RuntimeError(
                f"the images of another batch met the draw at site {self.site!r}: call x, target = mix(x, target) "
                f"before every training forward pass, and put others under `with mix.paused():`"
            )
        self._passed = set()

    def reach(self, site: str) -> None:
        """Note in eager code that a forward pass reached a site.

        Raises:
            RuntimeError: it did so before, and would be altered twice.
        """
        if self._passed is None or _is_recomputing():
            return
        if site in self._passed:
            raise RuntimeError(
                f"site {site!r} runs more than once in a training forward pass, but once in eval mode, and would be "
                f"mixed more than once: leave it out of sites"
            )
        self._passed.add(site)

    @torch.compiler.disable  # torch 2.4 runs the hooks of a compiled model outside its graph, and would compile this
    def end_pass(self, output: Any) -> None:
        """End an eager forward pass; keep what is armed for what the backward pass of its output recomputes."""
        self._passed = None
        armed = copy(self)  # `load` replaces tensors and never writes into them
        armed._recomputed = None

        def begin(grad: Tensor) -> None:
            self._recomputed = torch._C._current_graph_task_id(), armed

        parts = list(output.values()) if isinstance(output, dict) else output
        for part in parts if isinstance(parts, (tuple, list)) else [parts]:
            if isinstance(part, Tensor) and part.grad_fn is not None:  # not a parameter, which would keep the hook
                part.register_hook(begin)

    def in_this_pass(self) -> "Armed":
        """Return what is armed; inside a backward pass, what was armed in the forward pass that is recomputed."""
        task = torch._C._current_graph_task_id()  # -1 outside, as torch.utils.checkpoint asks, too
        return self._recomputed[1] if self._recomputed is not None and self._recomputed[0] == task else self

    @torch.compiler.assume_constant_result
    def note_traced(self, site: str) -> None:
        self.traced.add((type(self.model), site))


def _is_recomputing() -> bool:
    """Whether this is inside a backward pass, where gradient checkpointing runs parts of the model again."""
    return torch._C._current_graph_task_id() != -1


def _masks(draw: Draw, images: Tensor, *, alike: bool = False) -> tuple[Tensor, ...]:
    """Return the mask of each tensor of a site, in the memory format of the images, which the features have, too.

    A mask that got it inside a compiled graph would be fused into the loop over the features, and read across its rows.
    """
    masks = zip(draw.masks(alike=alike), draw.layouts)
    return tuple(mask_of_graph(like_memory(mask, images) if layout.nchw else mask) for mask, layout in masks)
