"""Mixer: a mixup-style callable that also reaches inside the network.

``x, target = mix(x, target)`` draws everything for the batch, alters ``x`` if the input was drawn and otherwise arms
the hook at the drawn site; the model then mixes its own features on the way. A method (see ``methods/``) is a
subclass that says what is altered at a site, and whether it is mixed or erased; sites, randomness, hooks, targets and
the loss are the same for all.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn

from ..errors import SiteError
from . import draw as sampling
from .checks import check_choice, check_count, check_number
from .criterion import Criterion, cross_entropy, for_soft_targets, is_affine, refuse_double_smoothing
from .draw import Draw, Place, Stream
from .functional import (
    Objective,
    erase_features,
    kept_fraction,
    mix_features,
    mix_targets,
    patchup_loss,
    soft_target,
)
from .hooks import Armed, attach, refuse_wrapped
from .sites import INPUT, PAPER_SITES, FeatureMap, Site, probe, resolve_sites


class Mixer:
    """Base of all methods: where, when and with whom to mix. A subclass defines ``alter``; an eraser ``rescale``, too.

    Args:
        model: a timm model, before torch.compile or any distributed wrapper.
        prob: probability that a batch is altered, in [0, 1].
        sites: names of sites or modules, one of which is chosen for each altered batch; None for the paper's set.
        objective: ``"paper"`` for L1 + L2, ``"l1"`` or ``"l2"`` for one of the two terms.
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets before they are mixed, in [0, 1).
        seed: seed of the draws; each rank draws its own.

    Attributes:
        draw: the Draw of the last batch, None before the first.
        mixup_enabled: timm's switch: False leaves every following batch as it is.
        default_sites: the names that ``sites=None`` stands for, as far as the model has them.
        runs_model: whether it runs the model to decide what to mix; its statistics matter then on every process.
    """

    default_sites: ClassVar[Sequence[str]] = PAPER_SITES
    runs_model: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        *,
        prob: float = 1.0,
        sites: Sequence[str] | None = None,
        objective: Objective = "l2",
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        refuse_wrapped(model)
        self.prob = check_number("prob", prob, low=0.0, high=1.0)
        self.label_smoothing = check_number("label_smoothing", label_smoothing, low=0.0, high=1.0, high_open=True)
        self.objective: Objective = check_choice("objective", objective, get_args(Objective))
        self.num_classes = None if num_classes is None else check_count("num_classes", num_classes, low=1)
        self.model = model
        self.sites: list[Site] = resolve_sites(model, sites, default=self.default_sites)
        self.draw: Draw | None = None
        self.mixup_enabled = True
        self._paused = 0
        self._detached = False
        self._labels_checked = False
        self._from_indices = True
        self._maps: dict[torch.Size, dict[str, FeatureMap]] = {}
        self._targets: tuple[Tensor, Tensor] | None = None
        self._stream = Stream(check_count("seed", seed, low=0))
        self._armed = Armed(model)
        self._handles = attach(model, self.sites, self._armed)

    def alter(self, place: Place) -> tuple[Tensor, float]:
        """Draw what is altered at a site: the one thing a method must define.

        Args:
            place: the site, the shape of the features there, and what to draw with.

        Returns:
            ``changed``, bool (1 or B, 1 or C, H, W) or (1, 1, 1, 1) for all, made on the device, and ``lam``, the
            weight of the own features inside it, 0 for a swap or where they are erased.
        """
        raise NotImplementedError

    def rescale(self, kept: Tensor) -> Tensor | None:
        """Return None to mix what was altered with a partner, or, to erase it, the factor of the features that stay.

        Args:
            kept: the fraction of features that stay, float32, 0-d or (B,).

        Returns:
            None, or float32, 0-d, on the device of ``kept``.
        """
        return None

    def settings(self) -> dict[str, Any]:
        """Return the arguments this mixer was made with, as plain values."""
        values = {
            "prob": self.prob,
            "sites": [site.name for site in self.sites],
            "objective": self.objective,
            "label_smoothing": self.label_smoothing,
            "seed": self._stream.seed,
        }
        taken = inspect.signature(type(self)).parameters
        return {name: value for name, value in values.items() if name in taken}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.settings().items())})"

    def __call__(self, x: Tensor, target: Tensor, *, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
        """Draw for a batch and mix its targets; hidden features follow in the next forward pass of the model.

        In eval mode, inside ``paused()`` and with ``mixup_enabled`` off nothing is altered and nothing is drawn. With
        gradient checkpointing, call backward before the next draw: what is recomputed takes the draw that is armed.

        Args:
            x: (B, C, H, W), floating point; not changed in place.
            target: int (B,) class indices, or float (B, K) distributions.
            draw: replay this draw instead of making one; the stream does not move.

        Returns:
            The images, altered if the input was drawn, and the soft targets, float32 (B, K): W where samples are
            mixed, their own where features are erased or nothing is altered.

        Raises:
            ValueError, TypeError: the batch or its targets do not fit.
            RuntimeError: the draw before this one was never applied, or the mixer is detached.
        """
        if self._detached:
            raise RuntimeError("this mixer is detached from its model: make a new one")
        self._require_applied()
        own = self._own_target(x, target)
        if self._paused or not self.mixup_enabled or not self.model.training:
            draw = _no_draw(x)
        elif draw is None:
            draw = self._make_draw(x, own)
        else:
            draw.check(len(x))
            if draw.site is not None:
                check_choice("draw.site", draw.site, [site.name for site in self.sites])
        self.draw, self._targets = draw, None
        self._armed.load(draw)
        if draw.changed is None:
            return x, own
        if draw.site == INPUT:
            x = self._alter_images(x, draw.changed, draw)
        if not draw.mixes:
            return x, own
        changed_target, mixed_target = mix_targets(own, draw.partner, kept=draw.kept, lam=draw.lam)
        self._targets = own, changed_target
        return x, mixed_target

    def loss(self, output: Tensor, target: Tensor, criterion: Criterion | None = None) -> Tensor:
        """Return the loss of the last batch: the objective if it was mixed, ``criterion(output, target)`` if not.

        Args:
            output: logits, (B, K).
            target: what the mixer returned for this batch.
            criterion: l(output, target) on soft targets; None for cross-entropy. timm's and torch's classification
                losses are known, others get soft targets (B, K).

        Raises:
            RuntimeError: the draw was never applied, so the loss would be that of a batch that was not mixed.
            ValueError: labels are smoothed by the mixer and by the criterion.
        """
        self._require_applied()
        criterion = cross_entropy if criterion is None else criterion
        refuse_double_smoothing(self.label_smoothing, criterion)
        soft = for_soft_targets(criterion, from_indices=self._from_indices) if target.ndim == 2 else criterion
        if self._targets is None or self.draw is None:
            return soft(output, target)
        if is_affine(criterion):
            loss = soft(output, target)
            return 2.0 * loss if self.objective == "paper" else loss
        own, changed_target = self._targets
        kept = self.draw.kept
        if kept.ndim == 1 and self.objective != "l2" and soft(output.detach(), target).shape != kept.shape:
            raise ValueError(
                "a mask for each sample with this criterion needs a loss for each sample: give a criterion with "
                "reduction='none', or objective='l2', or mask='batch'"
            )
        return patchup_loss(
            output,
            target=own,
            changed_target=changed_target,
            mixed_target=target,
            kept=kept,
            criterion=soft,
            objective=self.objective,
        )

    def run(
        self, model: Callable[[Tensor], Tensor], x: Tensor, target: Tensor, criterion: Criterion | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mix a batch, run the model, which may be wrapped, and return the loss and the output."""
        mixed, mixed_target = self(x, target)
        output = model(mixed)
        return self.loss(output, mixed_target, criterion), output

    def check_images(self, x: Tensor) -> None:
        """Look at what each site gives for images of this size, so that what cannot be mixed fails here.

        Args:
            x: images like those of training, (B, C, H, W), floating point; the model is run on them once.

        Raises:
            SiteError: a site gives no feature map; the message says which sites do.
        """
        self._maps_for(x)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Alter nothing inside, whatever is drawn: for a clean forward pass in train mode."""
        self._armed.site = None
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            if not self._paused:
                self._armed.site = self._armed.pending

    def detach(self) -> None:
        """Take every hook off the model, which is then as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._armed.disarm()
        self._detached = True

    def state_dict(self) -> dict[str, int]:
        """Return the state of the draws, for an exact resume; the same on every rank."""
        return self._stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on drawing where ``state_dict`` was taken."""
        self._stream.load_state_dict(state)

    def _make_draw(self, x: Tensor, own: Tensor) -> Draw:
        """Draw for a batch of images with their own targets, (B, K)."""
        maps = self._maps_for(x)
        generator = self._stream.next()
        if sampling.uniform(generator) >= self.prob:
            return _no_draw(x)
        site = self.sites[sampling.integer(len(self.sites), generator)]
        partner = torch.randperm(len(x), generator=generator).to(x.device, non_blocking=True)
        features = maps[site.name]
        shape = (len(x), features.channels, features.height, features.width)
        changed, lam = self.alter(Place(site.name, shape, generator, x.device))
        kept = kept_fraction(changed)
        scale = self.rescale(kept)
        if scale is not None:
            partner = torch.arange(len(x), device=x.device)
        if features.nhwc:
            changed = changed.permute(0, 2, 3, 1).contiguous()
        return Draw(site.name, partner, lam, changed, kept, scale)

    def _alter_images(self, x: Tensor, changed: Tensor, draw: Draw) -> Tensor:
        """Return the images as a draw at the input makes them."""
        if draw.scale is not None:
            return erase_features(x, changed, scale=draw.scale)
        return mix_features(x, changed, draw.partner, lam=draw.lam)

    def _maps_for(self, x: Tensor) -> dict[str, FeatureMap]:
        """Return what each site gives at this size of image: what cannot be mixed fails at the first batch."""
        size = x.shape[1:]
        if size not in self._maps:
            try:
                self._maps[size] = probe(self.model, self.sites, x)
            except SiteError:
                self.detach()  # so that a mixer with other sites can take its place
                raise
        return self._maps[size]

    def _require_applied(self) -> None:
        site = self._armed.unapplied()
        if site is None:
            return
        self._armed.disarm()
        raise RuntimeError(
            f"the draw at site {site!r} was never applied: no training forward pass of the model reached that site "
            f"after mix(x, target). Was another model (a copy?) run, the model in eval mode, the pass under paused()? "
            f"Was the model compiled before the mixer was made? Then torch._dynamo.reset() and compile it again"
        )

    def _own_target(self, x: Tensor, target: Tensor) -> Tensor:
        """Check the batch and return its targets as distributions."""
        if not isinstance(x, Tensor) or x.ndim != 4 or not x.is_floating_point():
            given = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"x must be a floating point tensor (B, C, H, W), got {given}")
        if len(x) == 0:
            raise ValueError(f"x is an empty batch of shape {tuple(x.shape)}: mixing needs at least one sample")
        no_target = not isinstance(target, Tensor) or target.dtype is torch.bool
        if no_target or target.ndim != (2 if target.is_floating_point() else 1):
            given = f"{target.dtype} {tuple(target.shape)}" if isinstance(target, Tensor) else type(target).__name__
            raise TypeError(f"target must be int (B,) class indices or float (B, K) distributions, got {given}")
        if len(target) != len(x):
            raise ValueError(f"target has {len(target)} rows, x has {len(x)} samples")
        num_classes = self.num_classes or getattr(self.model, "num_classes", None)
        self._from_indices = target.ndim == 1
        if target.ndim == 2:
            if num_classes and target.shape[1] != num_classes:
                raise ValueError(f"target has {target.shape[1]} columns, num_classes is {num_classes}")
            return soft_target(target, target.shape[1], label_smoothing=self.label_smoothing)
        if not num_classes:
            raise ValueError("class indices need num_classes: give it to the mixer, the model does not say")
        # On an accelerator a look at the values waits for the device, so there only the first batch is looked at.
        if target.device.type == "cpu" or not self._labels_checked:
            low, high = int(target.min()), int(target.max())
            if low < 0 or high >= num_classes:
                wrong = low if low < 0 else high
                raise ValueError(
                    f"target holds the label {wrong}, allowed are 0 to num_classes - 1 = {num_classes - 1}"
                )
            self._labels_checked = True
        return soft_target(target.long(), num_classes, label_smoothing=self.label_smoothing)


def _no_draw(x: Tensor) -> Draw:
    """Return the draw of a batch that is left as it is."""
    partner = torch.arange(len(x), device=x.device)
    return Draw(None, partner, 1.0, None, torch.ones((), device=x.device))
