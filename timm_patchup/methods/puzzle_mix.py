"""Puzzle Mix (Kim et al., 2020): join two images block by block so that what is salient in each stays visible.

The saliency of an image is the size of the loss gradient at each pixel, for which the model runs once more, forward and
back to the input, in eval mode as the authors do. ``puzzle_solver`` finds the mask and the transport of blocks for the
whole batch, ``puzzle_images`` joins the images.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..core.draw import Change, DrawContext, require_mask
from ..core.functional import Objective
from ..core.method import Method, register_method
from ..core.settings import check_value, on, setting
from ..errors import UserError, WrongType
from .puzzle_images import join_images, to_pixels, unit_range
from .puzzle_solver import block_saliency, mask_problem, solve_mask, transport_plan

FINEST = 16  # pieces along a side: blocks are not divided further for transport
SMALLEST = 4  # pixels along the side of such a piece


@dataclass(frozen=True)
class Puzzle:
    """Images joined block by block: the masks and moves that were found, so that a replay needs no gradient.

    Attributes:
        prior: the drawn lam ~ Beta(alpha, alpha) that the masks were asked to have as their mean.
        mask: float32, (B, R, C), weight of the own image in each block.
        own_source: int64, (B, R', C'), the piece of the image that moves to each place; None without transport.
        partner_source: the same for the partner's image.
        changed: bool, (B, 1, H, W), True where the partner has any weight.
        kept: float32, (B,), the mean of the mask: the own share of the target; the rest is the partner's.
    """

    prior: float
    mask: Tensor
    own_source: Tensor | None
    partner_source: Tensor | None
    changed: Tensor
    kept: Tensor
    lam: ClassVar[float] = 0.0
    mixes: ClassVar[bool] = True

    def apply(self, features: Tensor, partner: Tensor) -> Tensor:
        return join_images(features, partner, self.mask, own_source=self.own_source, partner_source=self.partner_source)

    def check(self, batch_size: int) -> None:
        require_mask(self.changed, batch_size)
        _require_tensor("draw.change.mask", self.mask, "a float", (batch_size, "R", "C"))
        for name in ("own_source", "partner_source"):
            if getattr(self, name) is not None:
                _require_tensor(f"draw.change.{name}", getattr(self, name), "an int64", (batch_size, "R", "C"))
        _require_tensor("draw.kept", self.kept, "a float", (batch_size,))
        for share in (self.kept.min(), self.kept.max()):
            check_value("draw.kept", share.item(), float, low=0, high=1)

    def for_splits(self, num_splits: int) -> "Puzzle":
        names = ("mask", "own_source", "partner_source", "changed", "kept")
        per_sample: dict[str, Any] = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        tiled: dict[str, Any] = {name: torch.cat([value] * num_splits) for name, value in per_sample.items()}
        return replace(self, **tiled)


def _require_tensor(name: str, value: Any, kind: str, shape: tuple[int | str, ...]) -> None:
    if isinstance(value, Tensor):
        fits = value.is_floating_point() if kind == "a float" else value.dtype is torch.int64
        if fits and value.ndim == len(shape) and len(value) == shape[0]:
            return
        value = f"{value.dtype} {tuple(value.shape)}"
    wanted = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    raise WrongType(f"{name} must be {kind} tensor ({wanted}), got {value}")


def _require_finite(x: Tensor) -> None:
    """Raise UserError if an image has a value without a place among the others: its edges have no energy."""
    odd = (~torch.isfinite(x)).flatten(1).any(dim=1)
    if odd.any():
        number = int(odd.nonzero()[0, 0])
        raise UserError(
            f"x must be finite for puzzle_mix, got NaN or infinity in image {number}: remove it from the data, or look "
            f"at what divides by 0 before the mixer"
        )


@register_method("puzzle_mix")
@dataclass(frozen=True, kw_only=True)
class PuzzleMix(Method):
    """Join the images of any classifier on an even grid; a sample that is its own partner is not altered."""

    needs_saliency: ClassVar[bool] = True

    alpha: float = setting(1.0, "lam ~ Beta(alpha, alpha)", above=0)
    block_num: tuple[int, ...] = setting((2, 4, 8, 16), "blocks along a side, one of these chosen per batch", low=1)
    n_labels: int = setting(3, "number of weights a block can have: 3 gives 0, 0.5 and 1", low=2, high=32)
    beta: float = setting(1.2, "weight of the smoothness of masks", low=0)
    gamma: float = setting(0.5, "weight of the smoothness of images across blocks, relative to beta", low=0, high=1)
    cell: int = setting(
        4,
        "pixels on either side of an edge that the smoothness of images compares; 2 in its ImageNet code",
        low=1,
        needs=on("gamma"),
    )
    eta: float = setting(0.2, "weight of the prior that pulls masks to lam", low=0)
    transport: bool = setting(True, "whether salient blocks move to where they are seen")
    transport_size: Literal["piece", "block"] = setting(
        "piece",
        "what moves: blocks divided into a 16 x 16 grid, or whole blocks, as it does on Tiny-ImageNet and ImageNet",
        needs=on("transport"),
    )
    t_eps: float = setting(0.8, "price of the distance a block moves", above=0, needs=on("transport"))
    objective: Objective = setting("l2", "paper for L1 + L2, l1 or l2 for one of the two terms")
    clean_lam: float = setting(
        0.0, "weight of the loss of the unmixed images, which is added; 1 in its Tiny-ImageNet command", low=0
    )

    @property
    def adds_loss(self) -> bool:
        return self.clean_lam > 0.0

    def added_loss(self, unmixed: Callable[[], Tensor]) -> Tensor:
        return self.clean_lam * unmixed()

    def check_model(self, model: nn.Module) -> None:
        if self.adds_loss and any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
            raise UserError(
                "clean_lam cannot be combined with SyncBatchNorm: only ranks whose batch was mixed run the unmixed "
                "images, and would wait for the others. Set clean_lam to 0, or leave the norm layers as they were"
            )

    @torch.no_grad()
    def change(self, context: DrawContext) -> Change:
        assert context.images is not None
        assert context.saliency is not None
        prior, block_num = context.beta(self.alpha), context.choose(self.block_num)
        x, partner = context.images, context.partner
        _require_finite(x)
        saliency = context.saliency()
        height, width = x.shape[2:]
        grid = min(block_num, height), min(block_num, width)
        problem = mask_problem(
            unit_range(x),
            block_saliency(saliency, grid),
            partner,
            lam=prior,
            n_labels=self.n_labels,
            beta=self.beta,
            gamma=self.gamma,
            eta=self.eta,
            cell=self.cell,
        )
        alone = (partner == torch.arange(len(x), device=x.device))[:, None, None]
        mask = (solve_mask(problem).float() / (self.n_labels - 1)).masked_fill(alone, 1.0)
        own_source = partner_source = None
        if self.transport:
            finer = 1
            if self.transport_size == "piece":
                finer = max(1, min(FINEST // max(grid), min(height // grid[0], width // grid[1]) // SMALLEST))
            pieces = mask.repeat_interleave(finer, 1).repeat_interleave(finer, 2)
            shares = block_saliency(saliency, (grid[0] * finer, grid[1] * finer))
            own_source = transport_plan(shares, pieces > 0.0, t_eps=self.t_eps)
            partner_source = transport_plan(shares[partner], pieces < 1.0, t_eps=self.t_eps)
        pixels = to_pixels(mask, height, width)
        return Puzzle(prior, mask, own_source, partner_source, pixels[:, None] < 1.0, pixels.mean((1, 2)))
