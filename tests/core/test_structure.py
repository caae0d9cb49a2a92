"""Stages and stem of models without feature_info: read off plain structures, left alone where they are not plain."""

import pytest
import torch
from torch import Tensor, nn

from timm_patchup import PatchUp, list_sites


class Net(nn.Module):
    """A model with these children, in this order, and no feature_info."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


class PatchMerging(nn.Identity):
    """The name is what counts."""


class Conv(nn.Sequential):
    def __init__(self, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(4, 4, 3, stride=stride, padding=1), nn.BatchNorm2d(4), nn.ReLU())


def same(count: int) -> list[nn.Module]:
    return [nn.Identity() for _ in range(count)]


def series(prefix: str, *ends: object, stem: str = "") -> dict[str, str]:
    stages = {f"stage{number}": f"{prefix}{end}" for number, end in enumerate(ends, start=1)}
    return {"stem": stem, **stages} if stem else stages


def conv(stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, stride=stride, padding=1)


class Stage(Net):
    """Blocks, then the reduction for the next stage: as transformers' Swin."""


CASES: dict[str, tuple[nn.Module, dict[str, str]]] = {
    "conv, norm, activation, stages": (
        Net(
            conv1=conv(2), bn1=nn.BatchNorm2d(4), relu=nn.ReLU(), maxpool=nn.MaxPool2d(2), layer1=Conv(), layer2=Conv(2)
        ),
        series("layer", 1, 2, stem="relu"),
    ),
    "five numbered stages stay five": (
        Net(stem=Conv(2), **{f"layer{i}": Conv() for i in range(1, 6)}),
        series("layer", 1, 2, 3, 4, 5, stem="stem"),
    ),
    "a module around everything": (
        Net(backbone=Net(conv1=conv(), layer1=Conv(), layer2=Conv(2)), head=nn.Linear(4, 10)),
        series("backbone.layer", 1, 2, stem="backbone.conv1"),
    ),
    "stages of an encoder": (
        Net(
            net=Net(embedder=Net(embedder=Conv(2), pooler=nn.MaxPool2d(2)), encoder=Net(stages=nn.ModuleList(same(3))))
        ),
        series("net.encoder.stages.", 0, 1, 2, stem="net.embedder.embedder"),
    ),
    "one resolution: quarters of the depth": (
        Net(vit=Net(embeddings=Net(patch_embeddings=conv(16), dropout=nn.Dropout()), layers=nn.ModuleList(same(12)))),
        series("vit.layers.", 2, 5, 8, 11, stem="vit.embeddings.patch_embeddings"),
    ),
    "layers that are no list": (
        Net(conv_proj=conv(16), encoder=Net(layers=Net(), norm=nn.LayerNorm(4))),
        {},
    ),
    "many blocks of falling resolution": (
        Net(conv_stem=Conv(2), blocks=nn.ModuleList([Conv(), Conv(2), Conv(), Conv(2), Conv(), Conv()])),
        series("blocks.", 0, 2, 5, stem="conv_stem"),
    ),
    "features with a block as stem and a last convolution": (
        Net(features=nn.Sequential(Conv(2), nn.Sequential(Conv()), nn.Sequential(Conv(2)), Conv())),
        series("features.", 1, 2, stem="features.0"),
    ),
    "features of bare layers that start at full resolution": (
        Net(features=nn.Sequential(conv(), nn.ReLU(), nn.MaxPool2d(2), conv(), nn.ReLU(), nn.MaxPool2d(2))),
        series("features.", 1, 4, 5),
    ),
    "features of bare layers that start with a stride": (
        Net(features=nn.Sequential(conv(2), nn.ReLU(), nn.MaxPool2d(2), conv(), nn.ReLU())),
        series("features.", 4, stem="features.1"),
    ),
    "merging between stages": (
        Net(features=nn.Sequential(Conv(4), nn.Sequential(*same(2)), PatchMerging(), nn.Sequential(*same(2)))),
        series("features.", 1, 3, stem="features.0"),
    ),
    "merging at the end of stages": (
        Net(
            encoder=Net(
                layers=nn.ModuleList(
                    [
                        Stage(blocks=nn.ModuleList(same(2)), downsample=PatchMerging()),
                        Stage(blocks=nn.ModuleList(same(3))),
                    ]
                )
            )
        ),
        series("encoder.layers.", "0.blocks.1", "1.blocks.2"),
    ),
    "a site and a module of one name are one place": (
        Net(conv1=Conv(2), stage2=Conv(2), stage3=Conv(2)),
        {"stem": "conv1", "stage2": "stage2", "stage3": "stage3"},
    ),
    "inside one of many": (Net(network=nn.ModuleList([Net(blocks=nn.ModuleList(same(3))), nn.Identity()])), {}),
    "one unnamed chain": (nn.Sequential(Conv(), Conv(2)), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_names_of_sites(case: str) -> None:
    model, expected = CASES[case]
    assert list_sites(model) == {"input": "", **expected}


class Residual(Net):
    """A block whose shortcut is its last child and bypasses the others."""

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.downsample(x)


def test_shortcut_of_a_block_is_no_reduction_at_the_end_of_a_stage() -> None:
    blocks = nn.ModuleList([Residual(conv=conv(2), downsample=conv(2)) for _ in range(3)])
    assert list_sites(Net(blocks=blocks)) == {"input": "", **series("blocks.", 0, 1, 2)}


class Own(nn.Module):
    """A user's own network: nothing of timm, no number of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(Conv(2), Conv(), Conv(2), Conv(2))
        self.features[0][0] = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


def test_own_network_trains_at_every_default_site() -> None:
    model = Own()
    mix = PatchUp(model, prob=1.0, block_size=3, num_classes=5)
    assert [site.name for site in mix.sites] == ["input", "stem", "stage1", "stage2"]
    seen = set()
    for _ in range(40):
        x, target = mix(torch.randn(4, 3, 32, 48), torch.tensor([0, 1, 2, 3]))
        mix.loss(model(x), target).backward()
        seen.add(mix.draw.site)  # type: ignore[union-attr]
    assert seen == {"input", "stem", "stage1", "stage2"}
