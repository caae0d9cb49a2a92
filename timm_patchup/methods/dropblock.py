"""DropBlock (Ghiasi et al., 2018): random blocks of the features at a random site are set to zero, the rest scaled up.

The maths is that of ``timm.layers.drop_block_2d``: each sample has blocks of its own, the same in all its channels, and
what is left is scaled by the share that is left of the batch. The targets stay as they are.
"""

from dataclasses import dataclass

import torch

from ..core.draw import Change, Erase
from ..core.functional import grow_blocks, kept_fraction, seed_rate
from ..core.method import Place, SiteMethod, register_method
from ..core.settings import setting


@register_method("dropblock")
@dataclass(frozen=True, kw_only=True)
class DropBlock(SiteMethod):
    """Erase blocks of the features at one random site per batch."""

    drop_prob: float = setting(
        0.1, "probability of dropping a feature, from which the rate of blocks follows", low=0, below=1
    )
    block_size: int = setting(7, "side of the blocks, cut to the map if the map is smaller", low=1)

    def change(self, place: Place) -> Change:
        batch_size, _, height, width = place.shape
        rate = seed_rate(self.drop_prob, self.block_size, height, width)
        changed = grow_blocks(place.bernoulli((batch_size, 1, height, width), rate), self.block_size)
        # If every feature of the batch is dropped there is nothing to scale: any factor finite in float16 will do.
        return Erase(changed, 1.0 / kept_fraction(changed).mean().clamp(min=torch.finfo(torch.float16).tiny))
