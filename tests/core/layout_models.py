"""Models of different layouts for the tests of layouts, and what a mixer makes of the features at a site."""

from typing import Any

import timm
import torch
from torch import Tensor, nn

from timm_patchup import Draw, Mixer
from timm_patchup.core.layout import by_sample, features_in
from timm_patchup.core.sites import site_module

_FLAT = (1, 1, 1, 1)
_NARROW = {"depth": 4, "embed_dim": 96, "num_heads": 2}
# Models of different layouts; those that take them have images that are not square.
MODELS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "test_vit": ({"img_size": (64, 96)}, (64, 96)),
    "deit_tiny_distilled_patch16_224": ({**_NARROW, "img_size": (96, 64)}, (96, 64)),
    "eva02_tiny_patch14_224": ({**_NARROW, "img_size": (56, 84)}, (56, 84)),
    "beit_base_patch16_224": ({**_NARROW, "img_size": (64, 96)}, (64, 96)),
    "naflexvit_base_patch16_gap": (_NARROW, (64, 96)),
    "vit_relpos_small_patch16_224": ({**_NARROW, "img_size": (64, 96)}, (64, 96)),
    "samvit_base_patch16_224": ({**_NARROW, "img_size": 64, "global_attn_indexes": [1]}, (64, 64)),
    "swin_tiny_patch4_window7_224": ({"depths": _FLAT, "embed_dim": 24, "img_size": (64, 96)}, (64, 96)),
    "hiera_tiny_224": ({"stages": (2, 1, 1, 1), "embed_dim": 24, "img_size": (64, 96)}, (64, 96)),
    "xcit_nano_12_p16_224": ({"depth": 4}, (64, 96)),
    "levit_128s": ({}, (224, 224)),
    "pit_ti_224": ({"img_size": 64, "depth": (1, 1, 1)}, (64, 64)),
    "tnt_s_legacy_patch16_224": ({"depth": 4, "img_size": 64}, (64, 64)),
    "crossvit_tiny_240": ({}, (240, 240)),
    "efficientvim_m1": ({}, (64, 96)),
    "test_mambaout": ({}, (96, 64)),
    "pvt_v2_b0": ({}, (64, 96)),
}
KNOWN = [name for name in MODELS if timm.is_model(name)]  # a release of timm may lack one
LABELS = torch.tensor([1, 2, 3])


def make(name: str) -> tuple[nn.Module, Tensor]:
    """Make a model in eval mode, and a batch for it."""
    settings, size = MODELS[name]
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=10, **settings).eval(), torch.randn(3, 3, *size)


def at_site(mix: Mixer, x: Tensor, draw: Draw | None = None) -> tuple[list[Tensor], list[Tensor], Draw]:
    """Run a batch; return what the mixer's one site gave, what the mixer made of it, and the draw."""
    module = site_module(mix.model, mix.sites[0])
    seen: list[list[Tensor]] = []

    def record(module: nn.Module, args: object, output: object) -> None:
        seen.append([by_sample(tensor.detach().clone(), len(x)) for tensor in features_in(output)])

    mix.model.training = True  # its modules stay in eval mode: only the mixer makes a difference
    mixed, target = mix(x, LABELS[: len(x)], draw=draw)
    handles = [module.register_forward_hook(record, prepend=True), module.register_forward_hook(record)]
    mix.loss(mix.model(mixed), target).backward()
    for handle in handles:
        handle.remove()
    assert mix.draw is not None
    before, after = seen
    return before, after, mix.draw
