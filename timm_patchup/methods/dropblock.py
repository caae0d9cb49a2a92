"""DropBlock (Ghiasi et al., 2018): random blocks of the features are set to zero, the rest scaled up.

As the authors of PatchUp ran it: at all hidden sites together, with different blocks for each sample and channel. What
is left is scaled by the share that is left of the batch; the targets stay as they are. ``mask="sample"`` is
``timm.layers.drop_block_2d``, with the same blocks in all channels of a sample.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..core.draw import Change, DrawContext, Erase
from ..core.functional import grow_blocks, kept_fraction, seed_rate
from ..core.method import PAPER_SITES, SiteMethod, register_method
from ..core.settings import setting


@register_method("dropblock")
@dataclass(frozen=True, kw_only=True)
class DropBlock(SiteMethod):
    """Erase blocks of the features at all hidden sites, or at one random site per batch."""

    default_sites: ClassVar[tuple[str, ...]] = PAPER_SITES[1:]

    drop_prob: float = setting(
        0.1, "probability of dropping a feature, from which the rate of blocks follows", low=0, below=1
    )
    block_size: int = setting(7, "side of the blocks, cut to the map if the map is smaller", low=1)
    at: Literal["all", "random"] = setting("all", "blocks at all sites together, or at a random one per batch")
    mask: Literal["channel", "sample"] = setting("channel", "blocks per sample and channel, or per sample")

    @property
    def at_all_sites(self) -> bool:
        return self.at == "all"

    def change(self, context: DrawContext) -> Change:
        batch_size, channels, height, width = context.shape
        rate = seed_rate(self.drop_prob, self.block_size, height, width)
        shape = (batch_size, channels if self.mask == "channel" else 1, height, width)
        changed = grow_blocks(context.bernoulli(shape, rate), self.block_size)
        # If every feature of the batch is dropped there is nothing to scale: any factor finite in float16 will do.
        return Erase(changed, 1.0 / kept_fraction(changed).mean().clamp(min=torch.finfo(torch.float16).tiny))
