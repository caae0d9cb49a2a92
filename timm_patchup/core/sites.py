"""Where features can be mixed: names such as ``stem`` or ``stage2`` resolved to modules of a timm model.

The paper writes a network as f_k(g_k(x)) and mixes the output of g_k for a random k: ``input`` is k = 0, ``stem``
k = 1, and ``stage1``, ``stage2``, ... follow. Names resolve through the model's ``feature_info``, or through its plain
structure if it has none (``structure.py``); any module name is a site, too. What a site really gives is only known once
the model has run: see ``probe.py``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..errors import SiteError, WrongType, brief, nearest
from .method import INPUT, PAPER_SITES
from .structure import find_stages, find_stem

# What timm calls the part before the first stage if feature_info does not list it, in order of preference.
_STEM_MODULES = (
    "stem",
    "patch_embed",
    "bn1",
    "conv_stem",
    "base_layer",
    "conv1",
    "patch_embeds.0",
    "patch_embed1",
    "pixel_embed",
    "embeds",
)
# What timm calls the stages if feature_info names none that exist.
_STAGE_SERIES = ("stages.#", "stage#", "layers.#", "layer#", "blocks.#", "serial_blocks#", "encoder.blocks.#")
# Modules listed in feature_info that features bypass, by the model's class: the head of MobileNetV5 reads its last two
# stages, EfficientViM's a state of every stage, the parallel blocks of CoaT its last three stages, and every cell
# of the NASNets the two cells before it.
_BYPASSED = {
    "NASNetALarge": r"cell_",
    "PNASNet5Large": r"cell_",
    "MobileNetV5": r"blocks\.3",
    "CoaT": r"serial_blocks[34]",
    "EfficientViM": r"stages\.[12]",
    "EfficientViMDistilled": r"stages\.[12]",
}
# Nets of one resolution whose stages are their first blocks, as in the first release, and not quarters of the depth.
_STAGES_AS_LISTED = {"ConvMixer"}


@dataclass(frozen=True)
class Site:
    """A place in a model.

    Attributes:
        name: what the user calls it.
        module_name: the module whose output is mixed; empty for the input.
        channels: number of channels according to feature_info, None if unknown.
    """

    name: str
    module_name: str
    channels: int | None = None


def list_sites(model: nn.Module) -> dict[str, str]:
    """Return the named sites of a model and the modules they stand for, in the order of the forward pass.

    Example:
        >>> list_sites(timm.create_model("resnet18"))
        {'input': '', 'stem': 'act1', 'stage1': 'layer1', 'stage2': 'layer2', 'stage3': 'layer3', 'stage4': 'layer4'}
    """
    require_module(model)
    return {site.name: site.module_name for site in _named_sites(model)}


def require_module(model: object) -> None:
    """Raise WrongType if a model is not a module, for example its name."""
    if not isinstance(model, nn.Module):
        raise WrongType(f"model must be an nn.Module, got {type(model).__name__}")


def resolve_sites(
    model: nn.Module,
    names: Sequence[str] | None,
    *,
    default: Sequence[str] = PAPER_SITES,
) -> list[Site]:
    """Turn site or module names into sites; None means all of ``default`` that the model has.

    Raises:
        SiteError: a name is unknown or given twice, or the model has no named sites.
    """
    named = {site.name: site for site in _named_sites(model)}
    if names is None:
        sites = [named[name] for name in default if name in named]
        if not any(site.module_name for site in sites):
            raise SiteError(
                "", f"{describe_model(model)} {_why_no_sites(model)}, so it has no default sites inside it", [INPUT]
            )
        return sites
    modules = dict(model.named_modules())
    sites = []
    for name in names:
        if name in named:
            sites.append(named[name])
        elif name and name in modules:
            sites.append(Site(name, name))
        else:
            raise SiteError(
                name,
                f"unknown site {brief(name)}: {describe_model(model)} has the sites {', '.join(named)}, and every "
                f"module name is a site, too{nearest(name, [*named, *modules])}",
            )
    hooked = [site_module(model, site) if site.module_name else None for site in sites]
    for place in hooked:
        twice = [site.name for site, module in zip(sites, hooked) if module is place]
        if len(twice) > 1:
            raise SiteError(twice[0], f"sites name one place more than once: {', '.join(twice)}")
    return sites


def site_module(model: nn.Module, site: Site) -> nn.Module:
    """Return the module to hook for a site: the last child if the site is an nn.Sequential.

    The output is the same tensor, but timm's gradient checkpointing calls the children of a stage and never the stage.
    """
    module = model.get_submodule(site.module_name)
    while type(module).forward is nn.Sequential.forward and len(module) > 0:  # type: ignore[arg-type]
        module = module[-1]  # type: ignore[index]
    return module


def _named_sites(model: nn.Module) -> list[Site]:
    if getattr(model, "feature_info", None):
        return _listed_sites(model)
    places = find_stages(model)
    if places and 0 not in places:
        places = {0: find_stem(model, next(iter(places.values()))), **places}
    named = {f"stage{number}" if number else "stem": module for number, module in places.items() if module}
    return [Site(INPUT, ""), *(Site(name, module) for name, module in named.items())]


def _listed_sites(model: nn.Module) -> list[Site]:
    """Return the sites of a model of timm, which lists its stages in ``feature_info``."""
    # The root is the whole net, and a ModuleList is never called.
    modules = {name: module for name, module in model.named_modules() if name and not isinstance(module, nn.ModuleList)}
    entries = _listed(model)
    if not any(name in modules for name, _ in entries):
        every = [name for name, _ in model.named_modules()]
        series = next((series for series in _STAGE_SERIES if series in map(_series, every)), None)
        entries = [(_last(model, name), None) for name in every if _series(name) == series]
    if len(entries) > 4 and _has_one_resolution(model) and type(model).__name__ not in _STAGES_AS_LISTED:
        entries = [entries[len(entries) * quarter // 4 - 1] for quarter in (1, 2, 3, 4)]  # stages by depth
    # Stages are a numbered series (layer1, layer2, ... or stages.0, stages.1, ...); an entry before it is the stem.
    has_stem = len(entries) > 1 and _series(entries[0][0]) != _series(entries[1][0])
    stem, stages = (entries[0], entries[1:]) if has_stem else (("", None), entries)
    if stages and stem[0] not in modules:
        around = stages[0][0].split(".")
        places = [".".join([*around[:depth], name]) for depth in range(len(around)) for name in _STEM_MODULES]
        stem = (next((name for name in places if name in modules), ""), None)
    sites = [Site(INPUT, "")]
    bypassed = _BYPASSED.get(type(model).__name__)
    for number, (listed, channels) in enumerate([stem, *stages]):
        if listed in modules and not (bypassed and re.search(bypassed, listed)):
            cut = _cut(listed, modules, [name for name, _ in entries])
            if any(site.module_name == cut for site in sites):
                continue  # one block alone is both stem and stage
            sites.append(Site(f"stage{number}" if number else "stem", cut, channels if cut == listed else None))
    return sites


def _listed(model: nn.Module) -> list[tuple[str, int | None]]:
    """Return module name and number of channels of every entry of the model's feature_info."""
    entries = getattr(model, "feature_info", None) or []
    # ConViT lists its head, with a reduction of 0; CrossViT lists its blocks once per branch.
    listed = [(str(entry["module"]), entry.get("num_chs")) for entry in entries if entry.get("reduction") != 0]
    return list({name: (name, channels) for name, channels in reversed(listed)}.values())[::-1]


def _has_one_resolution(model: nn.Module) -> bool:
    entries = getattr(model, "feature_info", None) or []
    return len({entry.get("reduction") for entry in entries}) < 2


def _last(model: nn.Module, name: str) -> str:
    """Return the last module of a list, of lists; a list itself is never called."""
    module = model.get_submodule(name)
    return _last(model, f"{name}.{len(module) - 1}") if isinstance(module, nn.ModuleList) and len(module) else name


def _cut(listed: str, modules: dict[str, nn.Module], entries: list[str]) -> str:
    """Return the outermost block around a listed module, or the module itself if it is in none.

    A block defines a forward and holds one entry of feature_info, for example a residual block. Inside it features may
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


def _why_no_sites(model: nn.Module) -> str:
    if listed := _listed(model):
        return f"has a feature_info that names modules which do not exist ({', '.join(name for name, _ in listed[:3])})"
    return "has no feature_info, and no modules called stages, layers, blocks or features"


def describe_site(model: nn.Module, site: Site) -> str:
    return f"site {site.name!r} (module {site.module_name!r} of {describe_model(model)})"


def describe_model(model: nn.Module) -> str:
    name = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    return f"{type(model).__name__} ({name})" if name else type(model).__name__
