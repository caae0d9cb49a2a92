"""Steps of training to compare: a model, batches for it, a draw at a wanted site and the gradients that follow."""

from collections.abc import Iterator

import timm
import torch
from torch import Tensor, nn

from timm_patchup import PatchUp

HIDDEN = ["stem", "stage1", "stage2"]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=10)


class SmallNet(nn.Module):
    """One convolution: small enough for the slower compilers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Conv2d(6, 10, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu()).mean((2, 3))


def batches(count: int, size: int = 4) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(size, 3, 64, 64, generator=generator)
        yield x, torch.randint(10, (size,), generator=generator)


def draw_at(mix: PatchUp, site: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Draw until the site comes up."""
    for _ in range(200):
        mixed, target = mix(x, y)
        if mix.draw.site == site:
            return mixed, target
        mix._arming.disarm()
    raise AssertionError(f"{site} never drawn")


def grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor], **tolerance: float) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], msg=lambda text, at=name: f"{at}: {text}", **tolerance)
