"""Runs of the model on the side: what its sites give, and how much its loss depends on each pixel.

The model is left as it was: training flags, running statistics, parameters, their gradients and global random state.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SiteError
from .layout import FeatureMap, describe, is_tokens, probe_images, read_layouts
from .loss import require_logits
from .method import INPUT
from .sites import Site, describe_site, site_module
from .tokens import UNKNOWN_ORDER, order_is_unknown, stated_prefix, token_order

# How many tokens may precede the grid if a model does not declare it: none, a class token, two of them.
_UNSTATED_PREFIXES = (0, 1, 2)


@torch.no_grad()
def probe(model: nn.Module, sites: Sequence[Site], x: Tensor) -> dict[str, tuple[FeatureMap, ...]]:
    """Run the model once on made-up images and return what each site gives, tensor by tensor.

    Args:
        model: the model, not wrapped.
        sites: the sites to look at.
        x: (B, C, H, W), a batch of the size to probe; its values do not matter.

    Raises:
        SiteError: a site does not run exactly once, or gives neither maps nor the tokens of a grid.
    """
    maps: dict[str, tuple[FeatureMap, ...]] = {INPUT: (FeatureMap(*x.shape[1:]),)}
    inside = [site for site in sites if site.module_name]
    if not inside:
        return maps
    images = probe_images(x)
    faults: list[tuple[str, str]] = []
    for site, outputs in zip(inside, outputs_at(model, inside, images)):
        found = _layouts_or_fault(model, site, outputs, images)
        if isinstance(found, str):
            faults.append((site.name, f"{describe_site(model, site)} {found}"))
        else:
            maps[site.name] = found
    if faults:
        raise SiteError(*faults[0], usable=list(maps))
    return maps


def _layouts_or_fault(
    model: nn.Module, site: Site, outputs: list[object], images: Tensor
) -> tuple[FeatureMap, ...] | str:
    """Return where the features are in what a site gave, or what is wrong with it."""
    if len(outputs) != 1:
        times = f"is called {len(outputs)} times" if outputs else "is never called"
        return f"{times} in a forward pass, mixing needs exactly one call"
    output = outputs[0]
    if is_tokens(output) and order_is_unknown(model, site):
        return UNKNOWN_ORDER
    stated = stated_prefix(model)
    prefixes = _UNSTATED_PREFIXES if stated is None else (stated, 0)
    order = token_order(model, site, output)
    found = read_layouts(output, images=images, channels=site.channels, prefixes=prefixes, order=order)
    return found or f"gives {describe(output)}, mixing needs maps (B, C, H, W) or (B, H, W, C), or tokens of a grid"


def outputs_at(model: nn.Module, sites: Sequence[Site], images: Tensor) -> list[list[object]]:
    """Run the model once on some images and return, per site, what its module gave each time it was called."""
    outputs: list[list[object]] = [[] for _ in sites]
    handles: list[torch.utils.hooks.RemovableHandle] = []
    with undisturbed(model, images) as images_of_model:
        try:
            for site, seen in zip(sites, outputs):
                handles.append(site_module(model, site).register_forward_hook(_recorder(seen)))
            model.forward(images_of_model)  # not model(...): a model compiled in place would not run the new hooks
        finally:
            torch.clear_autocast_cache()  # weights cast here have no gradients, and older torch would take them again
            for handle in handles:
                handle.remove()
    return outputs


def saliency(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Return how strongly the loss of a batch depends on each pixel.

    Args:
        model: the model.
        x: (B, C, H, W).
        target: float, (B, K).

    Returns:
        float32, (B, H, W): the root mean square over channels of the gradient of the cross-entropy.
    """
    with undisturbed(model, x) as images, torch.enable_grad():
        images = images.detach().requires_grad_()
        # The sum, not the mean: each sample's gradient is then as large as alone, far from underflow in half precision.
        output = model(images)
        require_logits(output)
        loss = F.cross_entropy(output.float(), target, reduction="sum")
        (grad,) = torch.autograd.grad(loss, images)
    return grad.float().square().mean(1).sqrt().nan_to_num(0.0, 0.0, 0.0)


@contextmanager
def undisturbed(model: nn.Module, x: Tensor) -> Iterator[Tensor]:
    """Put the model into eval mode inside and give the images in its dtype; everything is as before afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    accelerators = [] if x.device.type == "cpu" else [x.device]
    with torch.random.fork_rng(accelerators, device_type=x.device.type):
        try:
            model.eval()
            yield in_dtype_of(model, x)
        finally:
            for module, training in flags:
                module.training = training


def in_dtype_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return images in the dtype of the model's weights."""
    return x.to(next((p.dtype for p in model.parameters() if p.is_floating_point()), x.dtype))


def _recorder(seen: list[object]) -> Callable[[nn.Module, object, object], None]:
    def record(module: nn.Module, args: object, output: object) -> None:
        seen.append(list(output) if type(output) is list else output)  # some models write into their lists

    return record
