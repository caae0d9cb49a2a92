"""A method as a user would write it, in a separate module: ``tests.methods.outside_method:SwapColumns``."""

from dataclasses import dataclass

from timm_patchup import Change, DrawContext, Mix, SiteMethod, setting


@dataclass(frozen=True, kw_only=True)
class SwapColumns(SiteMethod):
    """Swap random columns of the features at a random site."""

    rate: float = setting(0.5, "probability that a column is swapped", low=0, high=1)

    def change(self, context: DrawContext) -> Change:
        height, width = context.shape[2:]
        return Mix(context.bernoulli((1, 1, 1, width), self.rate).expand(1, 1, height, width))
