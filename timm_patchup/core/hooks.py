"""The part of a mixer that is inside the model: the draw that is armed, and the hooks that apply it.

A mixer's ``Arming`` turns the draw of a batch into what hooks read (``ArmedDraw``), and follows it through the forward
pass. One hook per site applies it, two at the model note that a pass begins and ends. A hook copied with its model
(EMA, deepcopy, pickle) is inert: only the model that a mixer was made for is altered.

What Dynamo and inductor do with hooks, masks and indices was read from their guards (``TORCH_LOGS=recompiles``) and
from the code they generate (``TORCH_LOGS=output_code``).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Literal, Protocol
from weakref import ref

import torch
from torch import Tensor, nn

from .draw import Change, Draw, Erase, Mix
from .functional import erase_features, like_memory, mix_features
from .layout import FeatureMap, by_sample, features_in, with_features

# How far the draw of a batch has come: there is none for the hooks, it waits for a forward pass, a pass began (and
# raised, if that is the last that was heard of it), a pass ran in a graph that applies it, a pass applied it.
State = Literal["none", "waits", "begun", "in a graph", "applied"]


class MaskedAlteration:
    """A ``Mix`` or an ``Erase`` at one site, as flat tensors: a mask of each tensor there, and lam or scale."""

    def __init__(self, draw: Draw, site: str, images: Tensor, *, same_graph_inputs: bool) -> None:
        change = draw.changes[site]
        # In the memory format of the images, which the features have, too: a mask that got it inside a compiled graph
        # would be fused into the loop over the features, and read across its rows.
        masks = zip(draw.masks(site, expanded=same_graph_inputs), draw.layouts[site])
        self.masks = tuple(mask_for_graph(like_memory(mask, images) if layout.nchw else mask) for mask, layout in masks)
        # As a tensor, lam is an input of a compiled graph; as a number it would be a new graph for each batch.
        lam, device = change.lam, draw.partner.device
        lam = lam if isinstance(lam, Tensor) else torch.full((), lam, dtype=torch.float32, device=device)
        self.lam = None if draw.swaps and not same_graph_inputs else lam
        self.scale = change.scale if isinstance(change, Erase) else None

    def alter(self, features: Sequence[Tensor], armed: "ArmedDraw", site: str) -> list[Tensor]:
        if len(features) != len(self.masks):
            raise _other_number(site, len(features), len(self.masks))
        return [self._alter(tensor, mask, armed, site) for tensor, mask in zip(features, self.masks)]

    def _alter(self, features: Tensor, changed: Tensor, armed: "ArmedDraw", site: str) -> Tensor:
        rows = by_sample(features, len(armed.partner)) if len(features) % len(armed.partner) == 0 else features
        fits = all(size in (1, wanted) for size, wanted in zip(changed.shape[1:], rows.shape[1:]))
        if rows.shape[0] != armed.partner.shape[0] or rows.ndim != changed.ndim or not fits:
            raise _other_batch(site, features, armed, tuple(changed.shape[1:]))
        if self.scale is not None:
            rows = erase_features(rows, changed, scale=self.scale)
        else:
            rows = mix_features(rows, changed, armed.partner, lam=self.lam, inverse=armed.inverse)
        return rows if len(features) == len(armed.partner) else rows.view(features.shape)


class CustomAlteration:
    """Any other ``Change`` at one site: it is given the map (B, C, H, W) and returns it altered, in the graph.

    What has no place on the grid is mixed as the targets are, and stays as it is if samples are not mixed.
    """

    def __init__(self, draw: Draw, site: str) -> None:
        self.change, self.layouts = _with_tensors(draw.changes[site], draw.partner.device), draw.layouts[site]
        self.own_share = _own_share(draw.changes[site]) if draw.mixes else None

    def alter(self, features: Sequence[Tensor], armed: "ArmedDraw", site: str) -> list[Tensor]:
        if len(features) != len(self.layouts):
            raise _other_number(site, len(features), len(self.layouts))
        return [self._alter(tensor, layout, armed, site) for tensor, layout in zip(features, self.layouts)]

    def _alter(self, features: Tensor, layout: FeatureMap, armed: "ArmedDraw", site: str) -> Tensor:
        needed = (layout.channels, layout.height, layout.width)
        if len(features) % len(armed.partner):
            raise _other_batch(site, features, armed, needed)
        rows = by_sample(features, len(armed.partner))
        altered = rows
        if layout.size:
            if not layout.holds(rows):
                raise _other_batch(site, features, armed, needed)
            given = layout.to_nchw(rows)
            returned = self.change.apply(given, armed.partner)
            if returned.shape != given.shape:
                raise RuntimeError(
                    f"{type(self.change).__name__}.apply at site {site!r} must return the shape of the features, "
                    f"{tuple(given.shape)}, got {tuple(returned.shape)}"
                )
            altered = layout.with_nchw(rows, returned.to(given.dtype))
        if layout.prefix and self.own_share is not None:
            first, rest = rows[:, : layout.prefix], altered[:, layout.prefix :]
            weight = self.own_share.to(rows.dtype).reshape(-1, 1, 1)
            altered = torch.cat([torch.lerp(first[armed.partner], first, weight), rest], dim=1)
        return altered.reshape(features.shape)


class ArmedDraw:
    """A draw as the hooks read it: tensors by site, so that torch.compile guards on the sites alone.

    Attributes:
        alterations: what happens at each site inside the model.
        site: the last of them, which a forward pass must reach.
        partner: int64, (B,).
        inverse: the inverse of ``partner``.
    """

    def __init__(self, draw: Draw, images: Tensor, *, same_graph_inputs: bool) -> None:
        self.alterations: dict[str, MaskedAlteration | CustomAlteration] = {}
        for self.site, change in draw.hidden.items():
            self.alterations[self.site] = (
                MaskedAlteration(draw, self.site, images, same_graph_inputs=same_graph_inputs)
                if isinstance(change, (Mix, Erase))
                else CustomAlteration(draw, self.site)
            )
        if len(self.alterations) > 1 and draw.mixes:
            names = ", ".join(self.alterations)
            raise TypeError(f"features at several sites together ({names}) cannot be mixed with a partner's")
        self.partner, self.inverse = indices_for_graph(draw.partner)


class Handle(Protocol):
    """What is attached to a model, and can be taken off."""

    def remove(self) -> None: ...


class Arming:
    """What is armed in one model, from the draw of a batch to the pass that applies it: the one place that knows.

    Attributes:
        now: what hooks apply; None if nothing is armed, or while mixing is paused.
        state: how far the draw has come.
        detached: whether the hooks were taken off the model.
    """

    def __init__(self) -> None:
        self.number = -1
        self.detached = False
        self.handles: list[Handle] = []
        self.module_names: dict[str, str] = {}  # of the hooked module of each site
        self._images = BatchImages()
        self._paused = 0
        self._recomputed: tuple[int, ArmedDraw | None] | None = None
        self._traced: set[str] | None = None  # sites in the graph that is traced; None before the first
        self.disarm()

    def disarm(self) -> None:
        self.now: ArmedDraw | None = None
        self.state: State = "none"
        self._armed: ArmedDraw | None = None
        self._reached: set[str] | None = None  # sites that an eager forward pass reached; None outside of one

    def load(self, draw: Draw, images: Tensor, returned: Tensor, *, same_graph_inputs: bool = False) -> None:
        """Arm the draw of a batch; one at the input, or none at all, leaves nothing for the hooks to do.

        Args:
            draw: the draw.
            images: of the batch: features have their memory format.
            returned: what the model is given.
            same_graph_inputs: whether swaps and mixes of several methods have the same inputs, so that they share a
                compiled graph.
        """
        self.disarm()
        self._images.begin(images, returned)
        if draw.hidden:
            self.now = self._armed = ArmedDraw(draw, images, same_graph_inputs=same_graph_inputs)
            self.state = "waits"

    @property
    def is_paused(self) -> bool:
        return self._paused > 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let hooks apply nothing inside; the draw waits."""
        self.now = None
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            if not self._paused:
                self.now = self._armed

    def require_applied(self, model: nn.Module, *, at_loss: bool) -> None:
        """Raise RuntimeError, and disarm, if no forward pass has applied the draw.

        Args:
            model: the model.
            at_loss: whether a pass that began must have come to its end; if not, it may have raised.
        """
        if self.state == "begun" and not at_loss:
            self.disarm()
        if self._armed is None or self.state == "applied":
            return
        site = self._armed.site
        hooked = self._is_hooked(model, site)  # a graph that was made before may run on
        if self.state == "in a graph" and hooked:
            self.state = "applied"
            return
        self.disarm()
        if not hooked:
            raise RuntimeError(
                f"the draw at site {site!r} was never applied: its module was replaced after the mixer was made, as "
                f"convert_sync_batchnorm replaces norm layers. Make the mixer after that"
            )
        raise RuntimeError(
            f"the draw at site {site!r} was never applied: no training forward pass of the model reached that site "
            f"after mix(x, target). Was another model (a copy?) run, the model in eval mode, the pass under paused()? "
            f"Was the model compiled before the mixer was made? Then torch._dynamo.reset() and compile it again"
        )

    def detach(self) -> None:
        """Take every hook off the model, for good."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.disarm()
        self.detached = True
        release(self.number, ref(self))

    # Eager code. torch 2.4 runs the hooks of a compiled model outside its graph, and would compile these two.

    @torch.compiler.disable
    def begin_pass(self, inputs: Iterable[object]) -> None:
        """Begin a forward pass of the model.

        Raises:
            RuntimeError: its input is known to be another batch than the one that was drawn for.
        """
        if self.now is None or _is_recomputing():
            return
        if any(self._images.are_of_another(value) for value in inputs):
            raise RuntimeError(
                f"the images of another batch met the draw at site {self.now.site!r}: call x, target = "
                f"mix(x, target) before every training forward pass, and put others under `with mix.paused():`"
            )
        self._reached = set()
        if self.state != "applied":
            self.state = "begun"

    def in_this_pass(self) -> ArmedDraw | None:
        """Return what is armed; inside a backward pass, what was armed in the forward pass that is recomputed."""
        task = torch._C._current_graph_task_id()  # -1 outside, as torch.utils.checkpoint asks, too
        return self._recomputed[1] if self._recomputed is not None and self._recomputed[0] == task else self.now

    def reach(self, site: str, armed: ArmedDraw) -> None:
        """Note that a forward pass reached a site.

        Raises:
            RuntimeError: it did so before, and would be altered twice.
        """
        if armed is self.now and armed.site == site:
            self.state = "applied"
        if self._reached is None or _is_recomputing():
            return
        if site in self._reached:
            raise RuntimeError(
                f"site {site!r} runs more than once in a training forward pass, but once in eval mode, and would be "
                f"mixed more than once: leave it out of sites"
            )
        self._reached.add(site)

    @torch.compiler.disable
    def end_pass(self, model: nn.Module, output: Any) -> None:
        """End a forward pass; keep what is armed for what the backward pass of its output recomputes."""
        self._reached, armed = None, self.now
        if self.state == "begun" and armed is not None:
            # The site may be in a part of the model that is compiled by itself.
            self.state = "in a graph" if (self.number, type(model), armed.site) in _TRACED else "waits"

        def recompute_with_it(grad: Tensor) -> None:
            self._recomputed = torch._C._current_graph_task_id(), armed

        parts = list(output.values()) if isinstance(output, dict) else output
        for part in parts if isinstance(parts, (tuple, list)) else [parts]:
            if isinstance(part, Tensor) and part.grad_fn is not None:  # not a parameter, which would keep the hook
                part.register_hook(recompute_with_it)

    def _is_hooked(self, model: nn.Module, site: str) -> bool:
        """Whether the module that was hooked for a site is still in the model: it may have been replaced since."""
        found: Any = model
        for name in self.module_names[site].split("."):
            found = getattr(found, name, None)
        # Mostly it is where it was; an adapter may have put it into another module.
        around = found if isinstance(found, nn.Module) else model
        return any(
            hook.number == self.number and hook.site == site for root in (around, model) for hook in attached_to(root)
        )

    # Compiled code. A graph cannot note at a site that it was applied: a side effect inside a checkpointed region
    # breaks it. So sites are noted while the graph is traced, and the end of the pass, which is outside of all regions,
    # has the state that follows as a constant.

    @torch.compiler.assume_constant_result
    def begin_trace(self) -> None:
        self._traced = set()

    @torch.compiler.assume_constant_result
    def note_traced(self, kind: type[nn.Module], site: str) -> None:
        _TRACED.add((self.number, kind, site))
        self._traced = {*(self._traced or ()), site}

    @torch.compiler.assume_constant_result
    def state_after_graph(self, kind: type[nn.Module], site: str) -> State:
        # Without a separate trace it runs the graphs of the model that had its number.
        traced = (self.number, kind, site) in _TRACED if self._traced is None else site in self._traced
        return "in a graph" if traced else "waits"


class BatchImages:
    """Which tensors of images belong to the batch that was mixed last, and which to batches before it."""

    def __init__(self) -> None:
        self._batch = 0
        self._known: dict[int, tuple[ref[Tensor], int]] = {}  # by id, as long as the tensor lives

    def begin(self, *images: Tensor) -> None:
        """Note the images of the next batch, as they came and as they were returned."""
        self._batch += 1
        for tensor in images:
            self._known[id(tensor)] = ref(tensor, partial(self._forget, id(tensor))), self._batch

    def are_of_another(self, images: object) -> bool:
        """Whether images are known to be another batch than the last; of copies and others nothing is known."""
        known = self._known.get(id(images))
        return known is not None and known[0]() is images and known[1] != self._batch

    def _forget(self, key: int, dead: "ref[Tensor]") -> None:
        if key in self._known and self._known[key][0] is dead:
            del self._known[key]

    def __reduce__(self) -> tuple[type["BatchImages"], tuple[()]]:
        return type(self), ()  # a copy has seen no batch


# Hooks reach what is armed through this table and their number. Tensors that are reached through a module of torch are
# static for Dynamo: every size of batch would make a new graph. Numbers are used again, and graphs with them, so that
# the notes of what was traced outlive a mixer.
ARMINGS: dict[int, Arming] = {}
_is_exporting = getattr(torch.compiler, "is_exporting", None)  # torch before 2.7 does not tell export by Dynamo
_TRACED: set[tuple[int, type[nn.Module], str]] = set()


class Hook:
    """A hook of a mixer at a module; a copy belongs to no model and does nothing."""

    def __init__(self, model: nn.Module | None, number: int, site: str = "") -> None:
        self.model, self.number, self.site = model, number, site

    @property
    def __name__(self) -> str:
        # torch.jit.script asks every hook for its name. An AttributeError, so that others see that there is none.
        raise AttributeError(
            "torch.jit.script cannot compile the hooks of a mixer: detach it before, with mix.detach() or "
            "timm_patchup.detach(model)"
        )

    def __deepcopy__(self, memo: dict[int, object]) -> "Hook":
        return type(self)(None, -1, self.site)

    def __reduce__(self) -> tuple[type["Hook"], tuple[None, int, str]]:
        return type(self), (None, -1, self.site)


class SiteHook(Hook):
    """Forward hook at one site: alters the output if this site is armed and the model trains."""

    def __call__(self, module: nn.Module, args: object, output: Any) -> Any:
        # `training` first: compiled eval graphs must not depend on what is armed.
        if self.model is None or not self.model.training:
            return None
        arming = ARMINGS[self.number]
        # A graph keeps the draw for what it recomputes.
        armed = arming.now if torch.compiler.is_compiling() else arming.in_this_pass()
        if armed is None or self.site not in armed.alterations:
            return None
        _refuse_stored_graph(self.site)
        if torch.compiler.is_compiling():
            arming.note_traced(type(self.model), self.site)
        else:
            arming.reach(self.site, armed)
        return with_features(output, armed.alterations[self.site].alter(features_in(output), armed, self.site))


class BeginHook(Hook):
    """Forward pre-hook of the whole model: notes that a training pass began, which may raise before its end."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.model is None or not self.model.training:
            return
        arming = ARMINGS[self.number]
        if arming.now is None:
            return
        if torch.compiler.is_compiling():
            arming.begin_trace()
            arming.state = "begun"
        else:
            arming.begin_pass((*args, *kwargs.values()))


class EndHook(Hook):
    """Forward hook of the whole model: notes that a training pass ran, and with what armed."""

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        if self.model is None or not self.model.training:
            return
        arming = ARMINGS[self.number]
        if not torch.compiler.is_compiling():
            arming.end_pass(self.model, output)
        elif arming.now is not None:
            arming.state = arming.state_after_graph(type(self.model), arming.now.site)


def attached_to(model: nn.Module) -> Iterator[Hook]:
    """Yield the hooks of mixers inside a model that are not copies."""
    for module in model.modules():
        for hook in module._forward_hooks.values():
            if isinstance(hook, Hook) and hook.model is not None:
                yield hook


def release(number: int, arming: "ref[Arming]") -> None:
    """Give a number free; not one that another model has by now."""
    if number in ARMINGS and ARMINGS[number] is arming():
        del ARMINGS[number]


def _is_recomputing() -> bool:
    """Whether this is inside a backward pass, where gradient checkpointing runs parts of the model again."""
    return torch._C._current_graph_task_id() != -1


def _refuse_stored_graph(site: str) -> None:
    """Raise RuntimeError if the draw of this batch would become part of a graph that is stored."""
    exporting = torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
    if _is_exporting is not None:
        exporting = exporting or _is_exporting()
    if exporting or torch.jit.is_tracing():
        what = "torch.export" if exporting else "torch.jit.trace"
        raise RuntimeError(
            f"{what} would keep the mask drawn for one batch at site {site!r} in its graph: call model.eval() before "
            f"it, or detach the mixer"
        )


def _other_number(site: str, given: int, drawn: int) -> RuntimeError:
    return RuntimeError(
        f"site {site!r} gives {given} tensors in training, but {drawn} in eval mode: leave it out of sites"
    )


def _other_batch(site: str, features: Tensor, armed: ArmedDraw, shape: tuple[int, ...]) -> RuntimeError:
    return RuntimeError(
        f"features at site {site!r} have shape {tuple(features.shape)}, but the draw was made for a batch of "
        f"{armed.partner.shape[0]} with {shape}: call x, target = mix(x, target) before every training forward pass, "
        f"and put others under `with mix.paused():`"
    )


def _with_tensors(change: Change, device: torch.device) -> Change:
    """Return a change with tensors in place of its numbers, which would be a new graph for each batch."""
    if not is_dataclass(change):
        return change
    change = copy(change)
    for field in fields(change):
        if isinstance(value := getattr(change, field.name), float):
            object.__setattr__(change, field.name, torch.full((), value, dtype=torch.float32, device=device))
    return change


def _own_share(change: Change) -> Tensor:
    """Return the weight of a sample's own label, 0-d or (B,): also the weight of its features without a place."""
    return change.kept + (1.0 - change.kept) * change.lam


def mask_for_graph(changed: Tensor) -> Tensor:
    """Return a mask as an input of a compiled graph: bytes for bool, the same memory; floats as they are.

    On the CPU, inductor reads a bool mask value by value, with a branch for each, but bytes as vectors. Inside the
    graph it is too late: the conversion would be fused into the loop over the features.
    """
    return changed.view(torch.uint8) if changed.dtype is torch.bool else changed


def indices_for_graph(partner: Tensor) -> tuple[Tensor, Tensor]:
    """Return a permutation and its inverse, int64 (B,), as inputs of a compiled graph: the columns of one tensor.

    On the CPU, inductor can tile a loop that reads neighbours along two dimensions, as one over features and gradients
    in different memory formats does. An index vector without gaps makes the batch a third, and the loop is not
    vectorised.
    """
    indices = torch.stack([partner, partner.argsort()], dim=1)
    return indices[:, 0], indices[:, 1]
