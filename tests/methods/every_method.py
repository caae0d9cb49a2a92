"""What the tests of every method share: the methods by kind, a net cheap enough to compile, mixers and batches."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.conftest import NUM_CLASSES
from timm_patchup import Draw, Mixer, create_mixer, list_methods
from timm_patchup.methods import method_parameters

METHODS = list_methods()
MIXING = {"cutmix", "feature_cutmix", "hard_patchup", "manifold_mixup", "mixup", "puzzle_mix", "soft_patchup"}
ERASING = {"cutout", "dropblock"}
WITH_SITES = [name for name in METHODS if "sites" in method_parameters(name)]
HIDDEN = ["first", "second"]


class TinyNet(nn.Module):
    """Two maps and a head, cheap enough to compile and to spawn; ``first`` and ``second`` are its hidden sites."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, NUM_CLASSES)
        self.checkpointing = False

    def body(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.first(x).relu())).relu()

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.body, x, use_reentrant=False) if self.checkpointing else self.body(x)
        return self.head(x.mean((2, 3)))


def tiny_net() -> TinyNet:
    torch.manual_seed(0)
    return TinyNet().train()


def mixer_of(name: str, model: nn.Module, **settings: Any) -> Mixer:
    """Make a mixer that alters every batch at the sites of a TinyNet, as far as the method has such settings."""
    usual: dict[str, Any] = {"prob": 1.0, "sites": ["input", *HIDDEN], "num_classes": NUM_CLASSES, "length": 5}
    usual |= {"block_size": 3} | settings
    return create_mixer(name, model, **{key: value for key, value in usual.items() if key in method_parameters(name)})


def batch(size: int = 6, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, 12, 10, generator=generator), torch.randint(10, (size,), generator=generator)


def last(mix: Mixer) -> Draw:
    assert mix.draw is not None
    return mix.draw


def step(mix: Mixer, x: Tensor, y: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Draw, run the model and return the images, the target and the output."""
    mixed, target = mix(x, y, **options)
    return mixed, target, mix.model(mixed)


def same(first: Draw, second: Draw) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b

    names = ("site", "partner", "lam", "changed", "kept", "scale")
    return all(equal(getattr(first, name), getattr(second, name)) for name in names)


def one_hot(labels: Tensor) -> Tensor:
    return F.one_hot(labels, NUM_CLASSES).float()
