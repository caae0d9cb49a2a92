"""PatchUp (Faramarzi et al., 2022): swap or mix random blocks of hidden feature maps between pairs of samples.

Implements the paper's section "PatchUp": a mask of blocks at a random hidden site, hard or soft; at the input
(k = 0) one CutMix rectangle, always swapped, under the same objective.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from torch import Tensor

from ..core.draw import Change, DrawContext, Mix
from ..core.functional import MethodObjective, exact_seed_rate, expected_coverage, grow_blocks, seed_rate
from ..core.method import INPUT, LAM, SiteMethod, register_method
from ..core.settings import setting
from ..errors import UserError

_PROB = "probability that a batch is altered"
_GAMMA = "the paper's probability of altering a feature; the share altered is 1 - mix.draw.kept"


def _the_input(method: "BlockMethod") -> str | None:
    return None if method.sites is None or INPUT in method.sites else "at sites without the input"


@dataclass(frozen=True, kw_only=True)
class BlockMethod(SiteMethod):
    """What both modes share: the blocks, and what takes their place at the input."""

    gamma: float = setting(0.5, _GAMMA, low=0, high=1)
    block_size: int | tuple[int, ...] = setting(7, "side of the blocks, or a list with one per site", low=1)
    coverage: Literal["paper", "exact"] = setting(
        "paper", "rate of blocks: the paper's, or the one that alters gamma on average at any map size"
    )
    mask: Literal["batch", "sample"] = setting(
        "batch", "one mask for the batch (the authors' code; the paper is silent), or one per sample"
    )
    input_mask: Literal["rectangle", "blocks"] = setting(
        "rectangle",
        "at the input a CutMix rectangle (the paper), or the block mask of its ablation",
        needs=_the_input,
    )
    objective: MethodObjective = setting(
        "paper",
        "paper for L1 + L2, l1 or l2 for one of the two terms, authors for L1 + L2 with the own label in L2 at the "
        "input, as in their WRN",
    )

    def check_sites(self, names: Sequence[str]) -> None:
        if isinstance(self.block_size, tuple) and len(self.block_size) != len(names):
            sizes = len(self.block_size)
            raise UserError(
                f"block_size has {sizes} values, but there are {len(names)} sites: {', '.join(names)}; "
                f"give one value, or one per site"
            )

    def change(self, context: DrawContext) -> Change:
        if context.site == INPUT and self.input_mask == "rectangle":
            return Mix(context.rectangle(alpha=1.0))
        lam = self.draw_lam(context)  # drawn before the mask
        return Mix(self.blocks(context), lam)

    def draw_lam(self, context: DrawContext) -> float | Tensor:
        """Return the weight of the sample's own features inside the blocks."""
        return 0.0

    def blocks(self, context: DrawContext) -> Tensor:
        """Draw the block mask (eq. 2): bool, (1 or B, C, H, W)."""
        batch_size, channels, height, width = context.shape
        block_size = context.per_site(self.block_size)
        shape = (1 if self.mask == "batch" else batch_size, channels, height, width)
        find_rate = seed_rate if self.coverage == "paper" else exact_seed_rate
        rate = find_rate(self.gamma, block_size, height, width)
        if self.gamma < 1.0 and _alters_nearly_all(rate, block_size, height, width):
            # Python shows a warning of the same text once.
            warnings.warn(
                f"PatchUp alters nearly all features at site {context.site!r}: blocks of {block_size} on a map of "
                f"{height} x {width}. A batch whose features are all swapped is only a batch in another order: give "
                f"the site a smaller block_size, leave it out of sites, or set coverage='exact'",
                stacklevel=2,
            )
        return grow_blocks(context.bernoulli(shape, rate), block_size)


@lru_cache(maxsize=256)
def _alters_nearly_all(rate: float, block_size: int, height: int, width: int) -> bool:
    return expected_coverage(rate, block_size, height, width) > 0.95


@register_method("hard_patchup")
@dataclass(frozen=True, kw_only=True)
class HardPatchUp(BlockMethod):
    """Swap blocks of features between two samples."""

    prob: float = setting(0.7, _PROB, low=0, high=1)


@register_method("soft_patchup")
@dataclass(frozen=True, kw_only=True)
class SoftPatchUp(BlockMethod):
    """Interpolate blocks of features between two samples; at the input they are swapped, as in the paper."""

    gamma: float = setting(0.75, _GAMMA, low=0, high=1)
    alpha: float = setting(2.0, "lam ~ Beta(alpha, alpha), the weight of the own features in a block", above=0)
    lam: Literal["batch", "sample"] = setting("batch", LAM)

    def draw_lam(self, context: DrawContext) -> float | Tensor:
        return 0.0 if context.site == INPUT else context.lam(self.alpha, self.lam)
