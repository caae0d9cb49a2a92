"""Puzzle Mix (Kim et al., 2020): join two images block by block so that what is salient in each stays visible.

The saliency of an image is the size of the loss gradient at each pixel. ``puzzle_solver`` finds the mask and the
transport of blocks for the whole batch; here are the draws, the gradient and the mixture of the images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.checks import check_count, check_number
from ..core.draw import Draw, beta, integer, uniform
from ..core.functional import Objective
from ..core.mixer import Mixer
from ..core.sites import INPUT
from .puzzle_images import join_images, to_pixels, unit_range
from .puzzle_solver import CELL, block_saliency, mask_problem, solve_mask, transport_plan
from .registry import register_method

FINEST = 16  # pieces along a side: blocks are not divided further for transport


@dataclass(frozen=True, kw_only=True)
class PuzzleDraw(Draw):
    """A draw of Puzzle Mix: the masks and moves that were found, so that a replay needs no gradient.

    A block's weight can lie between 0 and 1 and every sample has its own share, so the fields of a Draw read:
    ``changed``, (B, 1, H, W), is True where the partner has any weight; ``kept``, (B,), is the mean of the mask, the
    sample's own share of its target; ``lam`` is 0, as the rest of the target is the partner's alone.

    Attributes:
        prior: the drawn lam ~ Beta(alpha, alpha) that the masks were asked to have as their mean.
        mask: float32, (B, R, C), weight of the own image in each block.
        own_source: int64, (B, R', C'), the piece of the own image that goes to each place; None without transport.
        partner_source: the same for the partner's image.
    """

    prior: float
    mask: Tensor
    own_source: Tensor | None
    partner_source: Tensor | None

    def check(self, batch_size: int) -> None:
        super().check(batch_size)
        grids = {"mask": self.mask, "own_source": self.own_source, "partner_source": self.partner_source}
        for name, grid in grids.items():
            if grid is not None and (grid.ndim != 3 or len(grid) != batch_size):
                raise ValueError(f"draw.{name} has shape {tuple(grid.shape)}, the batch needs ({batch_size}, R, C)")


class PuzzleMix(Mixer):
    """Puzzle Mix at the input of any image classifier.

    The images are divided into an even grid of ``block_num`` x ``block_num`` blocks; where sides do not divide, blocks
    differ by a pixel, and a grid is never finer than the pixels. Each call runs the model once more, forward and back
    to the input, in eval mode as the authors do: parameters, their gradients, running statistics and global random
    state stay as they are. A sample that is its own partner is not altered.

    Args:
        model: the model, before torch.compile or any distributed wrapper.
        alpha: lam ~ Beta(alpha, alpha), > 0.
        block_num: blocks along a side, or several numbers, one of which is chosen for each altered batch.
        n_labels: number of weights a block can have, at least 2; 3 gives 0, 0.5 and 1.
        beta: weight of the smoothness of masks, at least 0.
        gamma: weight of the smoothness of images across blocks, relative to beta, in [0, 1].
        eta: weight of the prior that pulls masks to lam, at least 0.
        transport: whether salient blocks move to where they are seen.
        t_eps: price of the distance a block moves, > 0.
        prob: probability that a batch is altered, in [0, 1].
        objective: ``"paper"`` for L1 + L2, ``"l1"`` or ``"l2"`` for one of the two terms.
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets before they are mixed, in [0, 1).
        seed: seed of the draws; each rank draws its own.

    Example:
        >>> mix = PuzzleMix(model)
        >>> x, target = mix(x, y)
        >>> loss = mix.loss(model(x), target)
    """

    runs_model: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        alpha: float = 1.0,
        block_num: int | Sequence[int] = (2, 4, 8, 16),
        n_labels: int = 3,
        beta: float = 1.2,
        gamma: float = 0.5,
        eta: float = 0.2,
        transport: bool = True,
        t_eps: float = 0.8,
        prob: float = 1.0,
        objective: Objective = "l2",
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.alpha = check_number("alpha", alpha, low=0.0, low_open=True)
        several = list(block_num) if isinstance(block_num, Sequence) and not isinstance(block_num, str) else [block_num]
        if not several:
            raise ValueError("block_num is empty: give at least one number of blocks, such as 4")
        self.block_num = [check_count("block_num", number, low=1) for number in several]
        self.n_labels = check_count("n_labels", n_labels, low=2)
        self.beta = check_number("beta", beta, low=0.0)
        self.gamma = check_number("gamma", gamma, low=0.0, high=1.0)
        self.eta = check_number("eta", eta, low=0.0)
        if not isinstance(transport, bool):
            raise TypeError(f"transport must be True or False, got {transport!r}")
        self.transport = transport
        self.t_eps = check_number("t_eps", t_eps, low=0.0, low_open=True)
        super().__init__(
            model,
            prob=prob,
            sites=[INPUT],
            objective=objective,
            num_classes=num_classes,
            label_smoothing=label_smoothing,
            seed=seed,
        )

    def settings(self) -> dict[str, Any]:
        own = ("alpha", "block_num", "n_labels", "beta", "gamma", "eta", "transport", "t_eps")
        return {key: getattr(self, key) for key in own} | super().settings()

    def __call__(self, x: Tensor, target: Tensor, *, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
        if draw is not None and draw.site is not None and not isinstance(draw, PuzzleDraw):
            raise TypeError(f"draw must be a PuzzleDraw, as mix.draw is after a batch, got {type(draw).__name__}")
        return super().__call__(x, target, draw=draw)

    def saliency(self, x: Tensor, target: Tensor) -> Tensor:
        """Return how strongly the loss of the clean batch depends on each pixel.

        Args:
            x: (B, C, H, W).
            target: float, (B, K).

        Returns:
            float32, (B, H, W): the root mean square over channels of the gradient of the cross-entropy.
        """
        flags = [(module, module.training) for module in self.model.modules()]
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), x.dtype)
        images = x.detach().to(dtype).requires_grad_()
        accelerators = [] if x.device.type == "cpu" else [x.device]
        with torch.random.fork_rng(accelerators, device_type=x.device.type), torch.enable_grad(), self.paused():
            try:
                self.model.eval()
                # The sum: each sample's gradient is then as large as alone, far from underflow in half precision.
                loss = F.cross_entropy(self.model(images).float(), target, reduction="sum")
                (grad,) = torch.autograd.grad(loss, images)
            finally:
                for module, training in flags:
                    module.training = training
        return grad.float().square().mean(1).sqrt().nan_to_num(0.0, 0.0, 0.0)

    def _make_draw(self, x: Tensor, own: Tensor) -> Draw:
        generator = self._stream.next()
        identity = torch.arange(len(x), device=x.device)
        if uniform(generator) >= self.prob:
            return Draw(None, identity, 1.0, None, torch.ones((), device=x.device))
        partner = torch.randperm(len(x), generator=generator).to(x.device, non_blocking=True)
        prior = beta(self.alpha, generator)
        block_num = self.block_num[integer(len(self.block_num), generator)]
        return self._solve(x.detach(), self.saliency(x, own), partner, prior, block_num)

    def _alter_images(self, x: Tensor, changed: Tensor, draw: Draw) -> Tensor:
        assert isinstance(draw, PuzzleDraw)
        return join_images(x, draw.partner, draw.mask, own_source=draw.own_source, partner_source=draw.partner_source)

    @torch.no_grad()
    def _solve(self, x: Tensor, saliency: Tensor, partner: Tensor, prior: float, block_num: int) -> PuzzleDraw:
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
        )
        alone = (partner == torch.arange(len(x), device=x.device))[:, None, None]
        mask = (solve_mask(problem) / (self.n_labels - 1)).masked_fill(alone, 1.0)
        own_source = partner_source = None
        if self.transport:
            finer = max(1, min(FINEST // max(grid), min(height // grid[0], width // grid[1]) // CELL))
            pieces = mask.repeat_interleave(finer, 1).repeat_interleave(finer, 2)
            shares = block_saliency(saliency, (grid[0] * finer, grid[1] * finer))
            own_source = transport_plan(shares, pieces > 0.0, t_eps=self.t_eps)
            partner_source = transport_plan(shares[partner], pieces < 1.0, t_eps=self.t_eps)
        pixels = to_pixels(mask, height, width)
        return PuzzleDraw(
            site=INPUT,
            partner=partner,
            lam=0.0,
            changed=pixels[:, None] < 1.0,
            kept=pixels.mean((1, 2)),
            prior=prior,
            mask=mask,
            own_source=own_source,
            partner_source=partner_source,
        )


register_method("puzzle_mix", PuzzleMix)
