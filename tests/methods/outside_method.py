"""A method as a user would write it, in a module of their own: ``tests.methods.outside_method:SwapColumns``."""

from dataclasses import dataclass

from timm_patchup.core.draw import Change, Mix
from timm_patchup.core.method import Place, SiteMethod
from timm_patchup.core.settings import setting


@dataclass(frozen=True, kw_only=True)
class SwapColumns(SiteMethod):
    """Swap random columns of the features at a random site."""

    rate: float = setting(0.5, "probability that a column is swapped", low=0, high=1)

    def change(self, place: Place) -> Change:
        height, width = place.shape[2:]
        return Mix(place.bernoulli((1, 1, 1, width), self.rate).expand(1, 1, height, width))
