"""Stages and stem of models without ``feature_info``: torchvision's, transformers' and a user's own.

They are read off plain structures, whatever a model wraps around them: numbered siblings (``layer1``, ``stage1``,
``block1``), or a list called ``stages``, ``layers``, ``layer``, ``blocks`` or ``features``. Sites are where timm
has them in the same model: stages end before the resolution falls, the stem before the first stage or pool.
"""

import re
from itertools import pairwise

from torch import nn

# Lists and siblings that are stages, in order of preference; what is nearest to the root comes first.
_SERIES = ("stages", "stage#", "layers", "layer", "layer#", "blocks", "block#", "features")
# What the part before the first stage is called, in order of preference.
_STEMS = (
    "stem",
    "patch_embed",
    "conv_stem",
    "embedder.embedder",
    "embedder",
    "embeddings.patch_embeddings",
    "embeddings.patch_embedding",
    "embeddings",
    "conv1",
    "conv_proj",
)
Named = list[tuple[str, nn.Module]]


def find_stages(model: nn.Module) -> dict[int, str]:
    """Return the modules at whose ends the stages of a model end, by number; 0 is a stem in the same list as they.

    Empty if the structure is not plain.
    """
    for name, module in sorted(model.named_modules(), key=lambda item: item[0].count(".") if item[0] else -1):
        if any(part.isdecimal() for part in name.split(".")):
            continue  # one of several in a list of another name
        for series in _SERIES:
            found = _children_in(name, module, series)
            if found:
                return _numbered(found, series)
    return {}


def find_stem(model: nn.Module, first_stage: str) -> str:
    """Return the module at whose end the stem ends, empty if none is known."""
    modules = dict(model.named_modules())
    around = first_stage.split(".")
    places = [".".join([*around[:depth], name]) for depth in range(len(around)) for name in _STEMS]
    found = next((name for name in places if name in modules), "")
    if not found or not _is_bare(modules[found]):
        return found
    parent, _, child = found.rpartition(".")
    siblings = list(modules[parent].named_children())
    follows = siblings[[name for name, _ in siblings].index(child) + 1 :]
    for name, module in follows:  # the norm and the activation of a bare convolution or embedding
        if not (_is_norm(module) or _is_activation(module)):
            break
        found = f"{parent}.{name}" if parent else name
    return found


def _children_in(name: str, module: nn.Module, series: str) -> Named:
    """Return the modules of a series among the children of a module, with their full names."""
    prefix = f"{name}." if name else ""
    if series.endswith("#"):
        pattern = re.compile(rf"{series[:-1]}\d+")
        return [(prefix + child, part) for child, part in module.named_children() if pattern.fullmatch(child)]
    listed = module._modules.get(series)
    if not isinstance(listed, nn.Sequential if series == "features" else (nn.Sequential, nn.ModuleList)):
        return []
    return [(f"{prefix}{series}.{child}", part) for child, part in listed.named_children()]


def _numbered(found: Named, series: str) -> dict[int, str]:
    if series == "stage#":  # a site and a module of one name are one place
        return {int(re.sub(r".*\D", "", name)): name for name, _ in found}
    if series == "features" or isinstance(found[0][1], nn.Conv2d):
        return _of_chain(found)
    if len(found) > 4 and series in ("layers", "layer", "blocks"):
        ends = _before_reductions(found)
        found = ends if len(ends) > 1 else [found[len(found) * quarter // 4 - 1] for quarter in (1, 2, 3, 4)]
    reducing = {type(module) for _, module in found if _blocks_before_reduction(module)}
    return {
        number: _last_block(name, module) if type(module) in reducing else name
        for number, (name, module) in enumerate(found, start=1)
    }


def _of_chain(found: Named) -> dict[int, str]:
    """Return the ends of stem and stages of a net that is one chain, from its first convolution on."""
    first = found[0][1]
    if _is_bare(first):
        ends = [name for name, _ in _before_reductions(found)]
        before = [module for name, module in found[: [name for name, _ in found].index(ends[0]) + 1]]
        return dict(enumerate(ends, start=0 if any(map(_reduces, before)) else 1))
    rest = found[1:-1] if len(found) > 2 and type(found[-1][1]) is type(first) is not nn.Sequential else found[1:]
    return dict(enumerate([found[0][0], *(name for name, _ in _before_reductions(rest))]))


def _before_reductions(found: Named) -> Named:
    """Return the modules of a chain after which the next reduces the resolution, and the last."""
    return [one for one, (_, after) in pairwise(found) if _reduces(after)] + found[-1:]


def _blocks_before_reduction(module: nn.Module) -> bool:
    """Whether a stage is a list of blocks and the reduction for the next stage: timm has that in the next one."""
    children = list(module.named_children())
    return len(children) == 2 and isinstance(children[0][1], nn.ModuleList) and children[1][0] == "downsample"


def _last_block(name: str, module: nn.Module) -> str:
    listed, blocks = next(module.named_children())
    return f"{name}.{listed}.{len(list(blocks.children())) - 1}"


def _reduces(module: nn.Module) -> bool:
    return any(_stride(part) > 1 or _is_merging(part) for part in module.modules())


def _stride(module: nn.Module) -> int:
    pools = (nn.MaxPool2d, nn.AvgPool2d)
    return max(_pair(module.stride)) if isinstance(module, (nn.Conv2d, *pools)) else 1


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


def _is_merging(module: nn.Module) -> bool:
    return "PatchMerging" in type(module).__name__


def _is_bare(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) or "PatchEmbed" in type(module).__name__ or _is_norm(module)


def _is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__ and not isinstance(module, nn.Sequential)


def _is_activation(module: nn.Module) -> bool:
    return "activation" in type(module).__module__ and not isinstance(module, nn.MultiheadAttention)
