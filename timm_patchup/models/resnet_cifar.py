"""ResNet-18 for small images, ``resnet18_cifar``: timm's ResNet with a 3 x 3 stem of stride 1 and without max-pooling.

It is the net of OpenMixup's benchmarks on CIFAR-100 and Tiny-ImageNet. Everything but the stem is timm's.
"""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

from .preact_resnet import small_image_cfg

_TIMM_STEM_REDUCTION = 4


class SmallImageResNet(ResNet):
    """timm's ResNet whose first stage works on all pixels. Arguments as for ``timm.models.resnet.ResNet``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        net: Any = self  # timm's attributes are not typed
        stem, weight = net.conv1, net.conv1.weight
        net.conv1 = nn.Conv2d(
            stem.in_channels, stem.out_channels, 3, padding=1, bias=False, device=weight.device, dtype=weight.dtype
        )
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        net.maxpool = nn.Identity()
        for info in net.feature_info:
            info["reduction"] = max(1, info["reduction"] // _TIMM_STEM_REDUCTION)


default_cfgs = generate_default_cfgs({"resnet18_cifar": small_image_cfg(first_conv="conv1", classifier="fc")})


@register_model
def resnet18_cifar(pretrained: bool = False, **kwargs: Any) -> SmallImageResNet:
    """ResNet-18 for images of 32 or 64 pixels."""
    sizes = {"block": BasicBlock, "layers": (2, 2, 2, 2)}
    return build_model_with_cfg(SmallImageResNet, "resnet18_cifar", pretrained, **{**sizes, **kwargs})
