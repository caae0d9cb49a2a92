"""What is known of a model's tokens without running it: how many precede the grid, their order, and if any are dropped.

``layout.py`` reads the grid from what a module returns; ``refuse_unreadable_tokens`` refuses what no run can make
readable.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import SiteError
from .method import INPUT
from .sites import Site, describe_site

_DROPPED = "drops different tokens of each sample in training (patch dropout): create the model with patch_drop_rate=0"
UNKNOWN_ORDER = "returns tokens in an order that is known only inside the model"


def refuse_unreadable_tokens(model: nn.Module, sites: Sequence[Site]) -> None:
    """Raise SiteError if the places of a site's tokens cannot be known, whatever the images.

    Patch dropout leaves other tokens of each sample; modules are registered in the order of the forward pass, so what
    comes after it has them.
    """
    names = [name for name, _ in model.named_modules()]
    drops = [name for name, module in model.named_modules() if _drops_patches(module)]
    faults = {}
    for site in sites:
        if drops and site.module_name and names.index(site.module_name) > names.index(drops[0]):
            faults[site.name] = _DROPPED
        elif order_is_unknown(model, site):
            faults[site.name] = UNKNOWN_ORDER
    for site in sites:
        if site.name in faults:
            usable = [other.name for other in sites if other.name not in faults] or [INPUT]
            raise SiteError(site.name, f"{describe_site(model, site)} {faults[site.name]}", usable)


def _drops_patches(module: nn.Module) -> bool:
    return "PatchDropout" in type(module).__name__ and bool(getattr(module, "prob", 0.0))


def order_is_unknown(model: nn.Module, site: Site) -> bool:
    """Whether a site is where Hiera has its tokens in an order that it alone knows."""
    if hasattr(model, "reroll"):
        return re.match(r"blocks\.\d+\.", site.module_name) is not None
    inner = [name for name, module in model.named_modules() if hasattr(module, "reroll")]
    return any(site.module_name.startswith(f"{name}.") for name in inner)


def stated_prefix(model: nn.Module) -> int | None:
    """Return how many tokens precede the grid, if a model declares it; otherwise None."""
    registers = getattr(getattr(model, "config", None), "num_register_tokens", None)
    # In transformers they follow a class token.
    return getattr(model, "num_prefix_tokens", None if registers is None else 1 + registers)


def token_order(model: nn.Module, site: Site, output: object) -> Tensor | None:
    """Return the token of each place if a model keeps them in another order: Hiera in the order of its pooling."""
    block = re.fullmatch(r"blocks\.(\d+)", site.module_name)
    if block is None or not hasattr(model, "reroll") or not isinstance(output, Tensor):
        return None
    tokens = torch.arange(output.shape[1], device=output.device).view(1, -1, 1)
    return model.reroll(tokens, int(block[1])).flatten()  # type: ignore[operator]
