"""Put the hooks of a mixer on a model and take them off: which models take any, what keeps compiled graphs apart."""

from collections.abc import Sequence
from itertools import count
from weakref import finalize, ref

import torch
from torch import nn

from .hooks import ARMINGS, Arming, BeginHook, EndHook, SiteHook, attached_to, release
from .sites import Site, require_module, site_module

_GRAPHS_PER_KIND = 8  # Dynamo's default for a function


def attach(arming: Arming, model: nn.Module, sites: Sequence[Site]) -> None:
    """Hook every site inside the model, and the model itself if a site is inside.

    Raises:
        ValueError: another mixer is attached to the model.
    """
    if any(True for _ in attached_to(model)):
        raise ValueError(
            "the model already has a mixer: call detach() on that one first, or timm_patchup.detach(model)"
        )
    hooked = {site.name: site_module(model, site) for site in sites if site.module_name}
    if not hooked:
        return
    names = {id(module): name for name, module in model.named_modules()}
    arming.module_names = {site: names[id(module)] for site, module in hooked.items()}
    arming.number = next(number for number in count() if number not in ARMINGS)
    ARMINGS[arming.number] = arming
    finalize(model, release, arming.number, ref(arming)).atexit = False
    for name, module in hooked.items():
        site_hook = SiteHook(model, arming.number, name)
        arming.handles += [InstanceForward(module), module.register_forward_hook(site_hook)]
    begin, end = BeginHook(model, arming.number), EndHook(model, arming.number)
    arming.handles += [model.register_forward_pre_hook(begin, with_kwargs=True), model.register_forward_hook(end)]
    increase_recompile_limit(1 + len(hooked))


def detach(model: nn.Module) -> None:
    """Take the hooks of a mixer off a model, also if nobody kept the mixer; without one, the model stays as it is.

    Args:
        model: the model that the mixer was made for, or what compile, DDP or a larger model made of it.

    Example:
        >>> mix = PatchUp(model)
        >>> timm_patchup.detach(model)
        >>> mix = PatchUp(model, mode="soft")
    """
    require_module(model)
    for number in {hook.number for hook in attached_to(model)}:
        ARMINGS[number].detach()


def refuse_wrapped(model: nn.Module) -> None:
    """Raise TypeError if hooks would not run, or not on this module: wrapped, compiled or scripted models."""
    require_module(model)
    kind = type(model).__name__
    order = "make the mixer first, then compile, then wrap"
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"model is a {kind}: hooks do not run in TorchScript, give the model before scripting")
    if isinstance(model, torch._dynamo.OptimizedModule) or model._compiled_call_impl is not None:
        raise TypeError(f"model is compiled: hooks added now would be ignored. Give the plain model; {order}")
    if isinstance(getattr(model, "module", None), nn.Module) and "Parallel" in kind:
        raise TypeError(f"model is wrapped in {kind}: give model.module; {order}")


class InstanceForward:
    """Gives a module a ``forward`` attribute, the same as its class's, so that torch.compile can tell it apart.

    Dynamo keeps its graphs per class and does not guard on the absence of hooks: a graph that was made for a model
    without a mixer would also run for one with, and no hook would fire. A module's own ``forward`` it does guard on.
    """

    def __init__(self, module: nn.Module | None = None) -> None:
        # Weakly, as the table of hooks.py would keep the model alive.
        self._module = None if module is None else ref(module)
        self._forward = None if module is None else ref(vars(module).setdefault("forward", module.forward))

    def remove(self) -> None:
        module = None if self._module is None else self._module()
        if module is not None and self._forward is not None and vars(module).get("forward") is self._forward():
            vars(module).pop("forward", None)

    def __reduce__(self) -> tuple[type["InstanceForward"], tuple[()]]:
        return type(self), ()  # a copy of a mixer is attached to nothing


def increase_recompile_limit(kinds: int) -> None:
    """Let Dynamo make as many graphs for each site, and for none, as for a model without hooks.

    Beyond its limit it runs a model uncompiled, which is slow and easily missed: the default of 8 is reached by one
    model with three sites, train and eval mode and two sizes of image. Each model with a mixer has its own graphs.

    The limit is raised for the process, because Dynamo reads it while it compiles, inside the model's forward pass,
    where a mixer cannot set it. A limit for one model is up to the caller: ``recompile_limit=...`` of
    ``torch.compile`` takes precedence in the torch releases that have it.
    """
    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # its name before torch 2.6
    setattr(config, name, max(getattr(config, name), _GRAPHS_PER_KIND * kinds * len(ARMINGS)))
    if torch.__version__.startswith("2.4."):
        # The default from 2.5 on. Without it, a tensor that is reached through a module, as a hook's tensors are, is a
        # constant of the graph, and every draw makes a new graph.
        config.inline_inbuilt_nn_modules = True
