"""Mixup (Zhang et al., 2018) and Manifold Mixup (Verma et al., 2019): weighted sums of two samples.

One lam for the batch, as in ``timm.data.Mixup``, or one per sample; the partner is a random permutation instead of
the reversed batch, so that odd batches work.
"""

from dataclasses import dataclass
from typing import Literal

from ..core.draw import Change, DrawContext, Mix
from ..core.method import LAM, Method, SiteMethod, register_method
from ..core.settings import setting


@register_method("mixup")
@dataclass(frozen=True, kw_only=True)
class Mixup(Method):
    """Mix the images of any model."""

    alpha: float = setting(1.0, "lam ~ Beta(alpha, alpha); small values mix little", above=0)
    lam: Literal["batch", "sample"] = setting("batch", LAM)

    def change(self, context: DrawContext) -> Change:
        return Mix(context.everywhere(), context.lam(self.alpha, self.lam))


@register_method("manifold_mixup")
@dataclass(frozen=True, kw_only=True)
class ManifoldMixup(SiteMethod):
    """Mix all features at a random site, the input among them."""

    alpha: float = setting(2.0, "lam ~ Beta(alpha, alpha); small values mix little", above=0)
    lam: Literal["batch", "sample"] = setting("batch", LAM)

    def change(self, context: DrawContext) -> Change:
        return Mix(context.everywhere(), context.lam(self.alpha, self.lam))
