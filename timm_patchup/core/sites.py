"""Where features can be mixed: names such as ``stem`` or ``stage2`` resolved to modules of a timm model.

The paper writes a network as f_k(g_k(x)) and mixes the output of g_k for a random k: ``input`` is k = 0, ``stem``
k = 1, and ``stage1``, ``stage2``, ... follow. Names resolve through the model's ``feature_info``; any module name is a
site too. What a site really gives is only known once the model has run, so ``probe`` runs it once for an input size.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..errors import SiteError, nearest

INPUT = "input"
PAPER_SITES = (INPUT, "stem", "stage1", "stage2")
# What timm calls the part before the first stage where feature_info does not list it, in order of preference.
_STEM_MODULES = ("stem", "patch_embed", "bn1", "conv_stem", "base_layer", "conv1")
# What timm calls the stages where feature_info names none that exist.
_STAGE_SERIES = ("stages.#", "stage#", "layers.#", "layer#", "blocks.#")
# Modules that features pass by although feature_info lists them, for a model's class: the head of MobileNetV5 reads its
# last two stages, and every cell of the NASNets the two cells before it.
_BYPASSED = {"NASNetALarge": "cell_", "PNASNet5Large": "cell_", "MobileNetV5": "blocks.3"}


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


def resolve_sites(
    model: nn.Module,
    names: Sequence[str] | None,
    *,
    default: Sequence[str] = PAPER_SITES,
) -> list[Site]:
    """Turn site or module names into sites; None means those of ``default`` that the model has.

    Raises:
        TypeError: ``names`` is a single string, or not made of strings.
        ValueError: a name is unknown or given twice, the list is empty, or the model has no named sites.
    """
    named = {site.name: site for site in _named_sites(model)}
    if names is None:
        sites = [named[name] for name in default if name in named]
        if not any(site.module_name for site in sites):
            raise ValueError(
                f"{_kind(model)} {_why_no_sites(model)}, so sites=None finds nothing inside it to mix. Give "
                f"sites=['input'], or the names of modules (model.named_modules()) that give a map (B, C, H, W)"
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
            raise ValueError(
                f"unknown site {name!r}: {_kind(model)} has the sites {', '.join(named)}, and every module name is a "
                f"site too{nearest(name, [*named, *modules])}"
            )
    hooked = [site_module(model, site) if site.module_name else None for site in sites]
    for place in hooked:
        twice = [site.name for site, module in zip(sites, hooked) if module is place]
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
    """Run the model once in eval mode on made-up images and return what each site gives.

    Running statistics, training flags, gradients and global random state stay as they are.

    Args:
        model: the model, not wrapped.
        sites: the sites to look at.
        x: (B, C, H, W), a batch of the size to probe; its values are not looked at.

    Raises:
        SiteError: a site does not run exactly once, or does not give a map (B, C, H, W) or (B, H, W, C).
    """
    maps = {INPUT: FeatureMap(*x.shape[1:])}
    outputs: dict[str, list[object]] = {site.name: [] for site in sites if site.module_name}
    if not outputs:
        return maps
    handles, flags = [], [(module, module.training) for module in model.modules()]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), x.dtype)
    images = _images_that_differ_below(x).to(dtype)
    accelerators = [] if x.device.type == "cpu" else [x.device]
    with torch.random.fork_rng(accelerators, device_type=x.device.type):
        try:
            for site in sites:
                if site.module_name:
                    handles.append(site_module(model, site).register_forward_hook(_recorder(outputs[site.name])))
            model.eval()
            model.forward(images)  # not model(images): a model compiled in place would not run the new hooks
        finally:
            torch.clear_autocast_cache()  # weights cast here have no gradients, and older torch would take them again
            for handle in handles:
                handle.remove()
            for module, training in flags:
                module.training = training
    faults: list[tuple[str, str]] = []
    for site in sites:
        if site.module_name:
            found = _as_map(outputs[site.name], site.channels, images)
            if isinstance(found, FeatureMap):
                maps[site.name] = found
            else:
                faults.append(
                    (site.name, f"site {site.name!r} (module {site.module_name!r} of {_kind(model)}) {found}")
                )
    if faults:
        raise SiteError(*faults[0], list(maps), f"Give sites={list(maps)}, which can be mixed, or name other modules")
    return maps


def _recorder(seen: list[object]) -> Callable[[nn.Module, object, object], None]:
    def record(module: nn.Module, args: object, output: object) -> None:
        seen.append(output)

    return record


def _named_sites(model: nn.Module) -> list[Site]:
    # The root is the whole net, and a ModuleList is never called.
    modules = {name: module for name, module in model.named_modules() if name and not isinstance(module, nn.ModuleList)}
    entries = _listed(model)
    if not any(name in modules for name, _ in entries):
        series = next((series for series in _STAGE_SERIES if series in map(_series, modules)), None)
        entries = [(name, None) for name in modules if _series(name) == series]
    # Stages are a numbered series (layer1, layer2, ... or stages.0, stages.1, ...); an entry before it is the stem.
    has_stem = len(entries) > 1 and _series(entries[0][0]) != _series(entries[1][0])
    stem, stages = (entries[0], entries[1:]) if has_stem else (("", None), entries)
    if stages and stem[0] not in modules:
        beside = stages[0][0].rpartition(".")[0]
        places = [*_STEM_MODULES, *(f"{beside}.{name}" for name in _STEM_MODULES)]
        stem = (next((name for name in places if name in modules), ""), None)
    sites = [Site(INPUT, "")]
    bypassed = _BYPASSED.get(type(model).__name__)
    for number, (listed, channels) in enumerate([stem, *stages]):
        if listed in modules and not (bypassed and bypassed in listed):
            cut = _cut(listed, modules, [name for name, _ in entries])
            sites.append(Site(f"stage{number}" if number else "stem", cut, channels if cut == listed else None))
    return sites


def _listed(model: nn.Module) -> list[tuple[str, int | None]]:
    """Return module name and number of channels of every entry of the model's feature_info."""
    return [(str(entry["module"]), entry.get("num_chs")) for entry in getattr(model, "feature_info", None) or []]


def _cut(listed: str, modules: dict[str, nn.Module], entries: list[str]) -> str:
    """Return the outermost block around a listed module, or the module itself if it is in none.

    A block has a forward of its own and holds one entry of feature_info: a residual block, say. Inside it features may
    pass by on another branch; at its end all of them meet.
    """
    parts = listed.split(".")
    for depth in range(1, len(parts)):
        around = ".".join(parts[:depth])
        alone = sum(entry.startswith(f"{around}.") for entry in entries) == 1
        if alone and around in modules and not isinstance(modules[around], nn.Sequential):
            return around
    return listed


def _series(module_name: str) -> str:
    return re.sub(r"\d+", "#", module_name)


def _images_that_differ_below(x: Tensor) -> Tensor:
    """Return two images of the size of ``x`` that are equal in their upper half only."""
    image = torch.arange(x[0].numel(), dtype=torch.float32, device=x.device).sin().view(1, *x.shape[1:])
    other = image.clone()
    other[..., x.shape[-2] // 2 :, :].neg_()
    return torch.cat([image, other])


def _as_map(outputs: list[object], channels: int | None, images: Tensor) -> FeatureMap | str:
    """Return the map that a site gave, or what is wrong with its outputs."""
    if len(outputs) != 1:
        times = "is never called" if not outputs else f"is called {len(outputs)} times"
        return f"{times} in a forward pass, mixing needs exactly one call"
    output = outputs[0]
    if isinstance(output, Tensor) and (layouts := _layouts(output.shape, channels, images.shape[-2], images.shape[-1])):
        return max(layouts, key=partial(_share_below, output))
    return f"gives {_describe(output)}, mixing needs one map (B, C, H, W) or (B, H, W, C)"


def _layouts(shape: torch.Size, channels: int | None, height: int, width: int) -> list[FeatureMap]:
    """Return the layouts that have the stated number of channels and the image's proportions: mostly just one."""
    if len(shape) != 4:
        return []
    _, a, b, c = shape
    layouts = [FeatureMap(a, b, c), FeatureMap(c, a, b, nhwc=True)]
    layouts = [layout for layout in layouts if layout.channels == channels] or layouts
    rounding = max(1.0, width / height)  # a row too many is worth so many columns
    return [layout for layout in layouts if abs(layout.width - layout.height * width / height) <= rounding]


def _share_below(output: Tensor, layout: FeatureMap) -> float:
    """Return how much of the difference between two samples lies in the lower half, if the layout is this one.

    For images that differ in their lower half it is near 1, but near 1/2 where the channels are taken for the rows.
    """
    difference = (output[0] - output[1]).abs().float()
    lower = difference.narrow(0 if layout.nhwc else 1, layout.height // 2, layout.height - layout.height // 2)
    return float(lower.sum() / difference.sum())


def _describe(output: object) -> str:
    if isinstance(output, (tuple, list)):
        return f"a {type(output).__name__} of {len(output)}: {', '.join(map(_shape, output))}"
    if isinstance(output, Tensor):
        return f"tokens (B, N, C) = {_shape(output)}" if output.ndim == 3 else f"a tensor {_shape(output)}"
    return f"a {type(output).__name__}"


def _shape(output: object) -> str:
    if isinstance(output, Tensor):
        return f"(B, {', '.join(map(str, output.shape[1:]))})"
    return type(output).__name__


def _why_no_sites(model: nn.Module) -> str:
    if listed := _listed(model):
        return f"has a feature_info that names modules which do not exist ({', '.join(name for name, _ in listed[:3])})"
    return "has no feature_info, and no modules called stages, layers or blocks"


def _kind(model: nn.Module) -> str:
    name = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    return f"{type(model).__name__} ({name})" if name else type(model).__name__
