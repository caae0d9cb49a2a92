"""Pre-activation ResNets for small images: PreActResNet-18/34 (He et al., 2016) and WRN-28-10 (Zagoruyko, 2016).

One class for all of them: they differ in depth and width only. ``timm.create_model("wrn28_10", num_classes=100)`` works
once the package is imported. If shapes change, the shortcut starts after the shared BatchNorm and ReLU, as in both
papers.
"""

from collections.abc import Sequence
from typing import Any, Literal

from timm.layers import ClassifierHead
from timm.models import build_model_with_cfg, checkpoint_seq, generate_default_cfgs, register_model
from torch import Tensor, nn

__all__ = ["PreActResNet"]

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)


class PreActBlock(nn.Module):
    """Two 3 x 3 convolutions, each after BatchNorm and ReLU, with a shortcut: (B, C, H, W) -> (B, C', H', W')."""

    def __init__(self, in_channels: int, channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.act = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv2(self.act(self.bn2(self.conv1(out))))
        return out + shortcut


class PreActResNet(nn.Module):
    """A pre-activation ResNet with a 3 x 3 stem and no pooling before the stages.

    Args:
        depths: number of blocks per stage.
        channels: channels per stage; each but the first halves the map.
        stem_channels: channels after the first convolution.
        stem_stride: stride of the first convolution: 1 at 32 pixels, 2 at 64 (Tiny-ImageNet).
        final_norm: BatchNorm and ReLU after the last stage, which a pre-activation net needs (He et al.); the paper's
            PreActResNets were trained without them.
        init: initial weights of the convolutions: ``"kaiming"`` (He et al., 2015), or ``"torch"`` for torch's own, with
            which the paper's nets were trained.
        block: the class of the residual blocks.
        stem_bias: whether the first convolution has a bias.
        final_momentum: share of a new batch in the running statistics of the final BatchNorm.
        num_classes: size of the classifier; 0 for none.
        in_chans: channels of the images.
        global_pool: timm's name of the pooling.
        drop_rate: dropout before the classifier.
    """

    def __init__(
        self,
        depths: Sequence[int] = (2, 2, 2, 2),
        channels: Sequence[int] = (64, 128, 256, 512),
        *,
        stem_channels: int = 64,
        stem_stride: int = 1,
        final_norm: bool = True,
        init: Literal["kaiming", "torch"] = "kaiming",
        block: type[nn.Module] | None = None,
        stem_bias: bool = False,
        final_momentum: float = 0.1,
        num_classes: int = 10,
        in_chans: int = 3,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if init not in ("kaiming", "torch"):
            raise ValueError(f"init must be 'kaiming' or 'torch', got {init!r}")
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.drop_rate = drop_rate
        self.grad_checkpointing = False
        self.stem = nn.Conv2d(in_chans, stem_channels, 3, stride=stem_stride, padding=1, bias=stem_bias)
        self.feature_info = [{"num_chs": stem_channels, "reduction": stem_stride, "module": "stem"}]
        self.stages = nn.Sequential()
        width, reduction = stem_channels, stem_stride
        for number, (depth, stage_channels) in enumerate(zip(depths, channels)):
            blocks = []
            for position in range(depth):
                stride = 2 if position == 0 and number > 0 else 1
                blocks.append((block or PreActBlock)(width, stage_channels, stride=stride))
                width, reduction = stage_channels, reduction * stride
            self.stages.append(nn.Sequential(*blocks))
            self.feature_info.append({"num_chs": width, "reduction": reduction, "module": f"stages.{number}"})
        self.num_features = self.head_hidden_size = width
        self.norm: nn.Module = nn.Identity()
        if final_norm:
            self.norm = nn.Sequential(nn.BatchNorm2d(width, momentum=final_momentum), nn.ReLU(inplace=True))
        self.head = ClassifierHead(width, num_classes, pool_type=global_pool, drop_rate=drop_rate)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and init == "kaiming":
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        blocks = r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.(\d+)"
        return {"stem": r"^stem", "blocks": [(blocks, None), (r"^norm", (99999,))]}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        self.head.reset(num_classes, pool_type=global_pool)

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.grad_checkpointing and self.training:
            x = checkpoint_seq(self.stages, x, flatten=True)
        else:
            x = self.stages(x)
        return self.norm(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(x, pre_logits=pre_logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def small_image_cfg(**kwargs: Any) -> dict[str, Any]:
    """Return timm's description of a net for 32 x 32 images."""
    return {
        "num_classes": 10,
        "input_size": (3, 32, 32),
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bilinear",
        "mean": CIFAR_MEAN,
        "std": CIFAR_STD,
        "first_conv": "stem",
        "classifier": "head.fc",
        "license": "apache-2.0",
        **kwargs,
    }


default_cfgs = generate_default_cfgs(
    {name: small_image_cfg() for name in ("preactresnet8", "preactresnet18", "preactresnet34", "wrn16_2", "wrn28_10")}
)


def create_net(variant: str, pretrained: bool, **kwargs: Any) -> PreActResNet:
    """Make a registered net."""
    features = {"out_indices": tuple(range(len(kwargs["depths"]) + 1)), "flatten_sequential": True}
    return build_model_with_cfg(PreActResNet, variant, pretrained, feature_cfg=features, **kwargs)


def wide(depth: int, widening: int) -> dict[str, Any]:
    """Return the sizes of a WideResNet."""
    channels = tuple(base * widening for base in (16, 32, 64))
    return {"depths": ((depth - 4) // 6,) * 3, "channels": channels, "stem_channels": 16}


@register_model
def preactresnet18(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """PreActResNet-18 for 32 x 32 images."""
    return create_net("preactresnet18", pretrained, **{"depths": (2, 2, 2, 2), **kwargs})


@register_model
def preactresnet34(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """PreActResNet-34 for 32 x 32 images."""
    return create_net("preactresnet34", pretrained, **{"depths": (3, 4, 6, 3), **kwargs})


@register_model
def wrn28_10(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """WideResNet-28-10 for 32 x 32 images."""
    return create_net("wrn28_10", pretrained, **{**wide(28, 10), **kwargs})


@register_model
def wrn16_2(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """WideResNet-16-2: small enough to train on a CPU."""
    return create_net("wrn16_2", pretrained, **{**wide(16, 2), **kwargs})


@register_model
def preactresnet8(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """One block per stage of 16, 32 and 64 channels, 77 thousand parameters: for scarce data and CPUs."""
    small = {"depths": (1, 1, 1), "channels": (16, 32, 64), "stem_channels": 16}
    return create_net("preactresnet8", pretrained, **{**small, **kwargs})
