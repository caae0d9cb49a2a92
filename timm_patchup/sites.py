"""Where features can be mixed: names such as ``stem`` or ``stage2`` resolved to modules of a timm model.

The paper writes a network as f_k(g_k(x)) and mixes the output of g_k for a random k: ``input`` is k = 0, ``stem``
k = 1, and ``stage1``, ``stage2``, ... follow. Names resolve through the model's ``feature_info``; any module name is a
site too. What a site really gives is only known once the model has run, so ``probe`` runs it once for an input size.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor, nn

INPUT = "input"
PAPER_SITES = (INPUT, "stem", "stage1", "stage2")
# What timm calls the part before the first stage where feature_info does not list it, in order of preference.
_STEM_MODULES = ("stem", "patch_embed", "bn1", "conv_stem", "base_layer")


@dataclass(frozen=True)
class Site:
    """A place in a model.

    Attributes:
        name: what the user calls it.
        module_name: the module whose output is mixed; empty for the input.
        channels: number of channels as feature_info states it, None where unknown.
    """

    name: str
    module_name: str
    channels: int | None = None


@dataclass(frozen=True)
class FeatureMap:
    """Shape of one sample's features at a site, and whether the model keeps channels last in memory order NHWC."""

    channels: int
    height: int
    width: int
    nhwc: bool = False


def list_sites(model: nn.Module) -> dict[str, str]:
    """Return the named sites of a model and the modules they stand for, in the order of the forward pass.

    Example:
        >>> list_sites(timm.create_model("resnet18"))
        {'input': '', 'stem': 'act1', 'stage1': 'layer1', 'stage2': 'layer2', 'stage3': 'layer3', 'stage4': 'layer4'}
    """
    return {site.name: site.module_name for site in _named_sites(model)}


def resolve_sites(model: nn.Module, names: Sequence[str] | None) -> list[Site]:
    """Turn site or module names into sites; None means those of the paper's set that the model has.

    Raises:
        TypeError: ``names`` is a single string, or not made of strings.
        ValueError: a name is unknown or given twice, the list is empty, or the model has no named sites.
    """
    named = {site.name: site for site in _named_sites(model)}
    if names is None:
        sites = [named[name] for name in PAPER_SITES if name in named]
        if len(sites) < 2:
            raise ValueError(
                f"{_kind(model)} has no feature_info that names its stages, so sites=None finds nothing to mix. "
                f"Give module names, for example sites={_suggest_modules(model)}, or sites=['input']"
            )
        return sites
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"sites must be a list of names such as ['input', 'stem', 'stage1'], got {names!r}")
    if not names:
        raise ValueError("sites is empty: give at least one name, or None for the paper's set")
    modules = dict(model.named_modules())
    sites = []
    for name in names:
        if name in named:
            sites.append(named[name])
        elif name and name in modules:
            sites.append(Site(name, name))
        else:
            near = get_close_matches(name, [*named, *modules], n=4, cutoff=0.4)
            raise ValueError(
                f"unknown site {name!r}: {_kind(model)} has the sites {', '.join(named)}, and every module name is a "
                f"site too" + (f"; nearest: {', '.join(near)}" if near else "")
            )
    for place in {site.module_name for site in sites}:
        twice = [site.name for site in sites if site.module_name == place]
        if len(twice) > 1:
            raise ValueError(f"sites name one place more than once: {', '.join(twice)}")
    return sites


def site_module(model: nn.Module, site: Site) -> nn.Module:
    """Return the module to hook for a site: the last child where the site is an nn.Sequential.

    The output is the same tensor, but timm's gradient checkpointing calls the children of a stage and never the stage.
    """
    module = model.get_submodule(site.module_name)
    while type(module).forward is nn.Sequential.forward and len(module) > 0:  # type: ignore[arg-type]
        module = module[-1]  # type: ignore[index]
    return module


@torch.no_grad()
def probe(model: nn.Module, sites: Sequence[Site], x: Tensor) -> dict[str, FeatureMap]:
    """Run one sample through the model in eval mode and return what each site gives.

    Running statistics, training flags and gradients stay as they are.

    Args:
        model: the model, not wrapped.
        sites: the sites to look at.
        x: (B, C, H, W), a batch of the size to probe; its first sample is used.

    Raises:
        ValueError: a site does not run exactly once, or does not give a map (B, C, H, W) or (B, H, W, C).
    """
    maps = {INPUT: FeatureMap(*x.shape[1:])}
    outputs: dict[str, list[object]] = {site.name: [] for site in sites if site.module_name}
    handles, flags = [], [(module, module.training) for module in model.modules()]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), x.dtype)
    try:
        for site in sites:
            if site.module_name:
                handles.append(site_module(model, site).register_forward_hook(_recorder(outputs[site.name])))
        model.eval()
        model(x[:1].to(dtype))
    finally:
        for handle in handles:
            handle.remove()
        for module, training in flags:
            module.training = training
    for site in sites:
        if site.module_name:
            maps[site.name] = _as_map(model, site, outputs[site.name], x)
    return maps


def _recorder(seen: list[object]):
    def record(module: nn.Module, args: object, output: object) -> None:
        seen.append(output.shape if isinstance(output, Tensor) else output)

    return record


def _named_sites(model: nn.Module) -> list[Site]:
    info = getattr(model, "feature_info", None) or []
    entries = [(str(entry["module"]), entry.get("num_chs")) for entry in info]
    modules = dict(model.named_modules())
    sites = [Site(INPUT, "")]
    # Stages are a numbered series (layer1, layer2, ... or stages.0, stages.1, ...); an entry before it is the stem.
    if len(entries) > 1 and _series(entries[0][0]) != _series(entries[1][0]):
        stem, entries = entries[:1], entries[1:]
    else:
        stem = [(name, None) for name in _STEM_MODULES if name in modules][:1] if entries else []
    sites += [Site("stem", name, channels) for name, channels in stem]
    sites += [Site(f"stage{i}", name, channels) for i, (name, channels) in enumerate(entries, start=1)]
    return [site for site in sites if site.name == INPUT or (site.module_name and site.module_name in modules)]


def _series(module_name: str) -> str:
    return re.sub(r"\d+", "#", module_name)


def _as_map(model: nn.Module, site: Site, outputs: list[object], x: Tensor) -> FeatureMap:
    where = f"site {site.name!r} (module {site.module_name!r} of {_kind(model)})"
    remedy = f"leave it out, for example sites=['input'], or name another module, for example {_suggest_modules(model)}"
    if len(outputs) != 1:
        times = "is never called" if not outputs else f"is called {len(outputs)} times"
        raise ValueError(f"{where} {times} in a forward pass, mixing needs exactly one call: {remedy}")
    shape = outputs[0]
    if not isinstance(shape, torch.Size):
        raise ValueError(f"{where} gives a {type(shape).__name__}, mixing needs one tensor (B, C, H, W): {remedy}")
    layout = _layout(shape, site.channels, x.shape[-2], x.shape[-1])
    if layout is None:
        kind = "tokens (B, N, C)" if len(shape) == 3 else f"a tensor of shape (B, {', '.join(map(str, shape[1:]))})"
        raise ValueError(f"{where} gives {kind}, mixing needs a map (B, C, H, W) or (B, H, W, C): {remedy}")
    return layout


def _layout(shape: torch.Size, channels: int | None, height: int, width: int) -> FeatureMap | None:
    """Tell NCHW from NHWC by the known number of channels, then by which pair of sides has the image's proportions."""
    if len(shape) != 4:
        return None
    _, a, b, c = shape
    candidates = [FeatureMap(a, b, c), FeatureMap(c, a, b, nhwc=True)]
    candidates = [m for m in candidates if m.channels == channels] or candidates
    return next((m for m in candidates if abs(m.width - m.height * width / height) <= 1.0), None)


def _suggest_modules(model: nn.Module) -> list[str]:
    """Name the first children that hold a convolution and are not the classifier: likely places for a map."""
    found = []
    for name, child in model.named_children():
        if any(isinstance(module, nn.Conv2d) for module in child.modules()) and "head" not in name:
            found.append(name)
    return found[:2] or ["input"]


def _kind(model: nn.Module) -> str:
    name = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    return f"{type(model).__name__} ({name})" if name else type(model).__name__
