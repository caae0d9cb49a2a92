"""WRN-28-10 as the authors of PatchUp trained it, ``wrn28_10_authors``: the net behind the paper's numbers.

It differs from Zagoruyko's (``wrn28_10``) in five ways: convolutions have biases, a block strides in its second
convolution, the shortcut starts before the BatchNorm and ReLU, the final BatchNorm has a momentum of 0.9, and the
convolutions start from torch's own initialisation.
"""

from typing import Any

from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from .preact_resnet import PreActResNet, create_net, small_image_cfg, wide


class AuthorsWideBlock(nn.Module):
    """Two 3 x 3 convolutions, each after BatchNorm and ReLU, added to a shortcut of the block's own input."""

    def __init__(self, in_channels: int, channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.act = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Conv2d(in_channels, channels, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(self.act(self.bn1(x)))
        return self.conv2(self.act(self.bn2(out))) + self.shortcut(x)


default_cfgs = generate_default_cfgs({"wrn28_10_authors": small_image_cfg()})


@register_model
def wrn28_10_authors(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """WideResNet-28-10 of the authors' code, for 32 x 32 images."""
    theirs = {"block": AuthorsWideBlock, "stem_bias": True, "final_momentum": 0.9, "init": "torch"}
    return create_net("wrn28_10_authors", pretrained, **{**wide(28, 10), **theirs, **kwargs})
