"""Two methods whose changes look at the features that they alter, as published feature mixers do."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from timm_patchup import Change, DrawContext, SiteMethod


@dataclass(frozen=True)
class SpreadNoise:
    """Noise drawn beforehand, scaled by how much each channel of a sample varies."""

    changed: Tensor
    noise: Tensor
    strength: float
    lam: ClassVar[float] = 0.0
    mixes: ClassVar[bool] = False

    @property
    def kept(self) -> Tensor:
        return torch.zeros((), device=self.changed.device)

    def apply(self, features: Tensor, partner: Tensor) -> Tensor:
        return features + self.strength * features.std(dim=(2, 3), keepdim=True) * self.noise.to(features.dtype)

    def check(self, batch_size: int) -> None:
        assert len(self.noise) == batch_size

    def for_splits(self, num_splits: int) -> "SpreadNoise":
        return replace(self, noise=torch.cat([self.noise] * num_splits))


@dataclass(frozen=True)
class WeakChannels:
    """The channels of a sample with the smallest norm, a fixed number, become a mix with its partner's."""

    changed: Tensor
    count: int
    kept: Tensor
    lam: float
    mixes: ClassVar[bool] = True

    def apply(self, features: Tensor, partner: Tensor) -> Tensor:
        norms = features.flatten(2).norm(dim=2)
        weakest = norms.topk(self.count, dim=1, largest=False).indices
        chosen = torch.zeros_like(norms, dtype=torch.bool).scatter(1, weakest, True)[:, :, None, None]
        return torch.where(chosen, self.lam * features + (1.0 - self.lam) * features[partner], features)

    def check(self, batch_size: int) -> None:
        pass

    def for_splits(self, num_splits: int) -> "WeakChannels":
        return self


@dataclass(frozen=True, kw_only=True)
class Noisy(SiteMethod):
    def change(self, context: DrawContext) -> Change:
        noise = torch.randn(context.shape, generator=context.generator, device="cpu").to(context.device)
        return SpreadNoise(context.everywhere(), noise, context.beta(2.0))


@dataclass(frozen=True, kw_only=True)
class CatchUp(SiteMethod):
    def change(self, context: DrawContext) -> Change:
        channels = context.shape[1]
        count = channels // 2
        kept = torch.full((), 1.0 - count / channels, device=context.device)
        return WeakChannels(context.everywhere(), count, kept, context.beta(2.0))


METHODS = {"noise": Noisy, "channels": CatchUp}
