"""CutMix and Feature CutMix (Yun et al., 2019): a rectangle is swapped with another sample's.

One rectangle for the batch, the same in every channel, and a target by the area that was really swapped (clipped at
the border), as in ``timm.data.Mixup``; the partner is a random permutation instead of the reversed batch.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core.draw import Change, DrawContext, Mix
from ..core.method import PAPER_SITES, Method, SiteMethod, register_method
from ..core.settings import setting


@register_method("cutmix")
@dataclass(frozen=True, kw_only=True)
class CutMix(Method):
    """Swap a rectangle of the images of any model."""

    alpha: float = setting(1.0, "area of the rectangle: 1 - Beta(alpha, alpha) of the image, before clipping", above=0)

    def change(self, context: DrawContext) -> Change:
        return Mix(context.rectangle(self.alpha))


@register_method("feature_cutmix")
@dataclass(frozen=True, kw_only=True)
class FeatureCutMix(SiteMethod):
    """Swap a rectangle of the features at a random hidden site."""

    default_sites: ClassVar[tuple[str, ...]] = PAPER_SITES[1:]

    alpha: float = setting(1.0, "area of the rectangle: 1 - Beta(alpha, alpha) of the map, before clipping", above=0)

    def change(self, context: DrawContext) -> Change:
        return Mix(context.rectangle(self.alpha))
