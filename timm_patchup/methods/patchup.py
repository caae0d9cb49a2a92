"""PatchUp (Faramarzi et al., 2022): swap or mix random blocks of hidden feature maps between pairs of samples.

Implements the paper's section "PatchUp": a mask of blocks at a random hidden site, hard or soft; at the input
(k = 0) one CutMix rectangle, always swapped, under the same objective.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from torch import Tensor, nn

from ..core.checks import check_choice, check_count, check_number
from ..core.draw import Place, bernoulli, beta, rectangle
from ..core.functional import Objective, grow_blocks, seed_rate
from ..core.mixer import Mixer
from ..core.sites import INPUT
from .registry import register_method

Mode = Literal["hard", "soft"]
MaskOf = Literal["batch", "sample"]
InputMask = Literal["rectangle", "blocks"]


class PatchUp(Mixer):
    """Hard or Soft PatchUp inside a timm model.

    Args:
        model: a timm model, before torch.compile or any distributed wrapper.
        mode: ``"hard"`` swaps the blocks of two samples, ``"soft"`` interpolates them.
        gamma: the paper's probability of altering a feature, in [0, 1], from which the rate of blocks follows; the
            share that is really altered grows as maps get smaller, and is ``1 - draw.kept``.
        block_size: side of the blocks, or a list with one for each site.
        prob: probability that a batch is altered, in [0, 1].
        alpha: lam ~ Beta(alpha, alpha) for soft, > 0.
        sites: names of sites or modules; None for the paper's set: input, stem, stage1, stage2.
        mask: ``"batch"`` draws one mask for all samples (the paper), ``"sample"`` one for each.
        input_mask: at the input ``"rectangle"`` takes one CutMix rectangle (the paper), ``"blocks"`` the block mask
            of its ablation.
        objective: ``"paper"`` for L1 + L2, ``"l1"`` or ``"l2"`` for one of the two terms.
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets before they are mixed, in [0, 1).
        seed: seed of the draws; each rank draws its own.

    Example:
        >>> mix = PatchUp(model, mode="hard")
        >>> x, target = mix(x, y)
        >>> loss = mix.loss(model(x), target)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mode: Mode = "hard",
        gamma: float = 0.5,
        block_size: int | Sequence[int] = 7,
        prob: float = 0.7,
        alpha: float = 2.0,
        sites: Sequence[str] | None = None,
        mask: MaskOf = "batch",
        input_mask: InputMask = "rectangle",
        objective: Objective = "paper",
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.mode: Mode = check_choice("mode", mode, get_args(Mode))
        self.gamma = check_number("gamma", gamma, low=0.0, high=1.0)
        self.alpha = check_number("alpha", alpha, low=0.0, low_open=True)
        self.mask: MaskOf = check_choice("mask", mask, get_args(MaskOf))
        self.input_mask: InputMask = check_choice("input_mask", input_mask, get_args(InputMask))
        several = isinstance(block_size, Sequence) and not isinstance(block_size, str)
        given = list(block_size) if isinstance(block_size, Sequence) and several else [block_size]
        sizes = [check_count("block_size", size, low=1) for size in given]
        super().__init__(
            model,
            prob=prob,
            sites=sites,
            objective=objective,
            num_classes=num_classes,
            label_smoothing=label_smoothing,
            seed=seed,
        )
        names = [site.name for site in self.sites]
        if several and len(sizes) != len(names):
            self.detach()
            raise ValueError(f"block_size has {len(sizes)} values, the sites are {len(names)}: {', '.join(names)}")
        self.block_size = dict(zip(names, sizes if several else sizes * len(names)))

    def settings(self) -> dict[str, Any]:
        own = {
            "mode": self.mode,
            "gamma": self.gamma,
            "block_size": list(self.block_size.values()),
            "alpha": self.alpha,
            "mask": self.mask,
            "input_mask": self.input_mask,
        }
        return own | super().settings()

    def alter(self, place: Place) -> tuple[Tensor, float]:
        batch_size, channels, height, width = place.shape
        if place.site == INPUT and self.input_mask == "rectangle":
            return rectangle(height, width, alpha=1.0, generator=place.generator, device=place.device), 0.0
        # At the input only the swap is used, in soft mode too.
        lam = beta(self.alpha, place.generator) if self.mode == "soft" and place.site != INPUT else 0.0
        block_size = self.block_size[place.site]
        shape = (1 if self.mask == "batch" else batch_size, channels, height, width)
        seeds = bernoulli(shape, seed_rate(self.gamma, block_size, height, width), place.generator, place.device)
        return grow_blocks(seeds, block_size), lam


register_method("hard_patchup", PatchUp, mode="hard", prob=0.7, gamma=0.5, block_size=7)
register_method("soft_patchup", PatchUp, mode="soft", prob=1.0, gamma=0.75, block_size=7)
