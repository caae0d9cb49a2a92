"""The part of a mixer that is inside the model: one hook per site, all reading the one draw that is armed.

A hook copied with its model (EMA, deepcopy, pickle) is inert: only the model that a mixer was made for is altered.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .armed import Armed
from .compiling import OwnForward, allow_graphs
from .functional import erase_features, mix_features
from .layout import by_sample, features_in, with_features
from .sites import Site, check_module, site_module


class SiteHook:
    """Forward hook at one site: alters the output if this site is the armed one and the model trains."""

    def __init__(self, armed: Armed | None, site: str) -> None:
        self.armed = armed
        self.site = site

    def __call__(self, module: nn.Module, args: object, output: Any) -> Any:
        armed = own = self.armed
        # `training` first: compiled eval graphs must not depend on what is armed.
        if armed is None or own is None or not own.model.training:
            return None
        if not torch.compiler.is_compiling():  # a graph keeps the draw for what it recomputes
            armed = armed.in_this_pass()
        if armed.site is None:
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
        self._refuse_capture()
        if not torch.compiler.is_compiling():
            own.reach(self.site)
        altered = [self._alter(armed, tensor, changed, scale) for tensor, changed in zip(features, masks)]
        if torch.compiler.is_compiling():
            armed.note_traced(self.site)
        elif armed.site == self.site:  # the last that was drawn of several sites
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

    def _refuse_capture(self) -> None:
        """Raise RuntimeError if the draw of this batch would become part of a stored graph."""
        exporting = torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
        if hasattr(torch.compiler, "is_exporting"):  # torch before 2.7 does not tell export by Dynamo from compilation
            exporting = exporting or torch.compiler.is_exporting()
        if exporting or torch.jit.is_tracing():
            what = "torch.export" if exporting else "torch.jit.trace"
            raise RuntimeError(
                f"{what} would keep the mask drawn for one batch at site {self.site!r} in its graph: call model.eval() "
                f"before it, or detach the mixer"
            )

    @property
    def __name__(self) -> str:
        # torch.jit.script asks every hook for its name. An AttributeError, so that others see that there is none.
        raise AttributeError(
            "torch.jit.script cannot compile the hooks of a mixer: detach it before, with mix.detach() or "
            "timm_patchup.detach(model)"
        )

    def __deepcopy__(self, memo: dict[int, object]) -> "SiteHook":
        return type(self)(None, self.site)

    def __reduce__(self) -> tuple[type["SiteHook"], tuple[None, str]]:
        return type(self), (None, self.site)


class BeginHook(SiteHook):
    """Forward pre-hook of the whole model: notes that a training pass began, which may raise before its end."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        armed = self.armed
        if armed is not None and armed.model.training and armed.site is not None:
            armed.began = True
            if not torch.compiler.is_compiling():
                armed.begin_pass((*args, *kwargs.values()))


class EndHook(SiteHook):
    """Forward hook of the whole model: notes that a training pass ran, and with what armed."""

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        armed = self.armed
        if armed is None or not armed.model.training:
            return
        if not torch.compiler.is_compiling():
            armed.end_pass(output)
        if armed.site is not None:
            armed.began, armed.ran = False, True


def attach(armed: Armed, sites: list[Site]) -> None:
    """Hook every site inside the model, and the model itself if a site is inside.

    Raises:
        ValueError: another mixer is attached to the model.
    """
    model = armed.model
    if any(True for _ in attached_to(model)):
        raise ValueError(
            "the model already has a mixer: call detach() on that one first, or timm_patchup.detach(model)"
        )
    for site in sites:
        if site.module_name:
            module = site_module(model, site)
            armed.handles += [OwnForward(module), module.register_forward_hook(SiteHook(armed, site.name))]
    if armed.handles:
        begin = BeginHook(armed, "")
        armed.handles.append(model.register_forward_pre_hook(begin, with_kwargs=True))
        armed.handles.append(model.register_forward_hook(EndHook(armed, "")))
        allow_graphs(1 + sum(bool(site.module_name) for site in sites))


def attached_to(model: nn.Module) -> Iterator[SiteHook]:
    """Yield the hooks of mixers inside a model; those of copied models belong to none."""
    for module in model.modules():
        for hook in module._forward_hooks.values():
            if isinstance(hook, SiteHook) and hook.armed is not None:
                yield hook


def detach(model: nn.Module) -> None:
    """Take the hooks of a mixer off a model, also if nobody kept the mixer; without one, the model stays as it is.

    Args:
        model: the model that the mixer was made for, or what compile, DDP or a larger model made of it.

    Example:
        >>> PatchUp(model)
        >>> timm_patchup.detach(model)
        >>> mix = PatchUp(model, mode="soft")
    """
    check_module(model)
    for armed in {hook.armed for hook in attached_to(model)}:
        assert armed is not None
        armed.detach()


def require_applied(armed: Armed) -> None:
    """Raise RuntimeError, and disarm, if no forward pass has applied what is armed."""
    site = armed.pending
    if site is None or armed.applied:
        return
    hooked = any(hook.armed is armed and hook.site == site for hook in attached_to(armed.model))
    if hooked and armed.was_applied:
        return
    armed.disarm()
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


def refuse_wrapped(model: nn.Module) -> None:
    """Raise TypeError if hooks would not run, or not on this module: wrapped, compiled or scripted models."""
    check_module(model)
    kind = type(model).__name__
    order = "make the mixer first, then compile, then wrap"
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"model is a {kind}: hooks do not run in TorchScript, give the model before scripting")
    if isinstance(model, torch._dynamo.OptimizedModule) or model._compiled_call_impl is not None:
        raise TypeError(f"model is compiled: hooks added now would be ignored. Give the plain model; {order}")
    if isinstance(getattr(model, "module", None), nn.Module) and "Parallel" in kind:
        raise TypeError(f"model is wrapped in {kind}: give model.module; {order}")
