"""What the tests of the adapters share: a tiny model and data, and the plain loop that all adapters must agree with."""

from collections.abc import Iterable
from contextlib import nullcontext

import timm
import torch
from torch import Tensor, nn

from timm_patchup import Mixer, PatchUp

LR = 0.05


def small_model() -> nn.Module:
    """The same weights at every call."""
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=10).train()


def small_mixer(model: nn.Module, *, seed: int = 3, **settings: object) -> Mixer:
    """Alter most batches, at any of the four sites."""
    return PatchUp(model, mode="soft", prob=0.8, block_size=3, seed=seed, **settings)


def samples(count: int = 24) -> list[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, 32, 32, generator=generator)
    return list(zip(images, torch.randint(10, (count,), generator=generator).tolist()))


def train_plainly(
    model: nn.Module, mix: Mixer, batches: Iterable[tuple[Tensor, Tensor]], *, accumulate: int = 1, bf16: bool = False
) -> None:
    """A hand-written loop: three lines of the README, SGD and, if asked for, accumulation and autocast."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for number, (x, y) in enumerate(batches, start=1):
        with torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else nullcontext():
            x, target = mix(x, y)
            loss = mix.loss(model(x), target)
        (loss / accumulate).backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same_weights(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether all weights and statistics are equal to the last bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
