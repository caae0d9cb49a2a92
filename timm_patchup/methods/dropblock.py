"""DropBlock (Ghiasi et al., 2018): random blocks of the features at a random site are set to zero, the rest scaled up.

The maths is that of ``timm.layers.drop_block_2d``: each sample has blocks of its own, the same in all its channels, and
what is left is scaled by the share that is left of the batch. The targets stay as they are.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.checks import check_count, check_number
from ..core.draw import Place, bernoulli
from ..core.functional import grow_blocks, seed_rate
from ..core.mixer import Mixer
from .registry import register_method


class DropBlock(Mixer):
    """DropBlock inside a timm model, at one random site for each batch.

    Args:
        model: a timm model, before torch.compile or any distributed wrapper.
        drop_prob: probability of dropping a feature, from which the rate of blocks follows, in [0, 1).
        block_size: side of the blocks; cut to the map where the map is smaller.
        prob: probability that a batch is altered, in [0, 1].
        sites: names of sites or modules, one of which is chosen for each batch; None for input, stem, stage1, stage2.
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets, in [0, 1).
        seed: seed of the draws; each rank draws its own.

    Example:
        >>> mix = DropBlock(model, drop_prob=0.1)
        >>> x, target = mix(x, y)
        >>> loss = mix.loss(model(x), target)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        drop_prob: float = 0.1,
        block_size: int = 7,
        prob: float = 1.0,
        sites: Sequence[str] | None = None,
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.drop_prob = check_number("drop_prob", drop_prob, low=0.0, high=1.0, high_open=True)
        self.block_size = check_count("block_size", block_size, low=1)
        super().__init__(
            model, prob=prob, sites=sites, num_classes=num_classes, label_smoothing=label_smoothing, seed=seed
        )

    def settings(self) -> dict[str, Any]:
        return {"drop_prob": self.drop_prob, "block_size": self.block_size} | super().settings()

    def alter(self, place: Place) -> tuple[Tensor, float]:
        batch_size, _, height, width = place.shape
        rate = seed_rate(self.drop_prob, self.block_size, height, width)
        seeds = bernoulli((batch_size, 1, height, width), rate, place.generator, place.device)
        return grow_blocks(seeds, self.block_size), 0.0

    def rescale(self, kept: Tensor) -> Tensor:
        # Where every feature of the batch is dropped there is nothing to scale: any factor finite in float16 will do.
        return 1.0 / kept.mean().clamp(min=torch.finfo(torch.float16).tiny)


register_method("dropblock", DropBlock)
