"""Mixer: a mixup-style callable that also reaches inside the network. The one engine of all methods.

``x, target = mix(x, target)`` draws everything for the batch, alters ``x`` if the input was drawn and otherwise arms
the hook at the drawn site; the model then mixes its own features on the way. The method decides what is altered; sites,
randomness, hooks, targets and the loss are the same for all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SiteError, UserError, WrongType, brief
from .armed import Armed
from .batch import (
    MixedBatch,
    check_batch,
    check_logits,
    check_returned,
    check_splits,
    is_of_another_batch,
    mark_returned,
    own_target,
)
from .criterion import Criterion, cross_entropy, refuse_double_smoothing, refuse_other_splits
from .draw import Draw
from .functional import mix_targets
from .hooks import attach, refuse_wrapped, require_applied
from .layout import FeatureMap
from .make_draw import make_draw
from .method import INPUT, Method
from .objective import mean_loss, mixed_loss, own_targets, unmixed_loss
from .probe import in_dtype_of, probe, saliency
from .schedule import Schedule
from .seeding import Stream
from .settings import check_value
from .sites import Site, resolve_sites
from .tokens import check_readable


class Mixer:
    """Mixes a model's batches with a method.

    Args:
        model: of timm, torchvision, transformers or your own, before torch.compile or any distributed wrapper.
        method: what is altered, such as ``HardPatchUp(gamma=0.4)``.
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets before they are mixed, in [0, 1).
        seed: seed of the draws; each rank draws its own.
        schedule: what changes from epoch to epoch, which ``set_epoch`` states; None for nothing.
        num_splits: timm's augmentation splits: a batch holds all samples that many times, one split after the other,
            each differently augmented. All splits of a sample have one partner, mask and lam.

    Attributes:
        mixup_enabled: timm's switch: False leaves every following batch as it is.
        sites: where the method can act in this model; of several methods, all of theirs.

    Example:
        >>> mix = Mixer(model, ManifoldMixup(alpha=1.5))
        >>> x, target = mix(x, y)
        >>> loss = mix.loss(model(x), target)
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        *,
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
        schedule: Schedule | None = None,
        num_splits: int = 1,
    ) -> None:
        refuse_wrapped(model)
        if not isinstance(method, Method):
            raise WrongType(
                f"method must be a method such as HardPatchUp(), got {brief(method, 60)}; "
                f"create_mixer(name, model) takes the name of one"
            )
        self.model = model
        self._method = method
        self.num_classes = check_value("num_classes", num_classes, int | None, low=1)
        self.label_smoothing = check_value("label_smoothing", label_smoothing, float, low=0, below=1)
        self.num_splits = check_value("num_splits", num_splits, int, low=1)
        sites: dict[str, Site] = {}
        self._site_names: list[tuple[str, ...]] = []  # of each method that may act
        for member in method.members:
            own = {site.name: site for site in resolve_sites(model, member.site_names, default=member.default_sites)}
            member.check_sites(list(own))
            sites |= own
            self._site_names.append(tuple(own))
        self.sites = list(sites.values())
        self.schedule = schedule or Schedule()
        self.schedule.check(method)
        if any(member.clean_lam for member in method.members) and _syncs_batch_norm(model):
            raise UserError(
                "clean_lam cannot be combined with SyncBatchNorm: only ranks whose batch was mixed run the unmixed "
                "images, and would wait for the others. Set clean_lam to 0, or leave the norm layers as they were"
            )
        self._epoch = None if self.schedule.is_needed else 0.0
        check_readable(model, self.sites)
        self.mixup_enabled = True
        self._batch: MixedBatch | None = None
        self._paused = 0
        self._clean_loss_due = False
        self._maps: dict[torch.Size, dict[str, tuple[FeatureMap, ...]]] = {}
        self._stream = Stream(check_value("seed", seed, int, low=0))
        self._armed = Armed(model)
        attach(self._armed, self.sites)

    def __repr__(self) -> str:
        sites = ", ".join(site.name for site in self.sites)
        return f"{self.method} at {sites}; label_smoothing={self.label_smoothing}, seed={self._stream.seed}"

    @property
    def method(self) -> Method:
        """What is altered. Can be replaced between batches, by a method that acts at the same sites."""
        return self._method

    @method.setter
    def method(self, method: Method) -> None:
        if _sites_asked_for(method) != _sites_asked_for(self.method):
            raise UserError(
                f"{method!r} acts at other sites than {self.method!r}, and the hooks stay where they are: "
                f"call detach() and make a new mixer"
            )
        for member, names in zip(method.members, self._site_names):
            member.check_sites(names)
        self.schedule.check(method)
        self._method = method

    @property
    def draw(self) -> Draw | None:
        """The Draw of the last batch, None before the first."""
        return None if self._batch is None else self._batch.draw

    def __call__(self, x: Tensor, target: Tensor, *, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
        """Draw for a batch and mix its targets; hidden features follow in the next forward pass of the model.

        In eval mode, inside ``paused()`` and with ``mixup_enabled`` off nothing is altered and nothing is drawn.

        Args:
            x: (B, C, H, W), floating point; not changed in place.
            target: int (B,) class indices, or float (B, K) distributions.
            draw: replay this draw instead of making one; the stream does not move.

        Returns:
            The images, altered if the input was drawn, and the soft targets, float32 (B, K): W if samples are mixed,
            their own if features are erased or nothing is altered.

        Until the next call, every training forward pass is altered under this draw: right for the same images again, as
        SAM runs them twice, and wrong for others, such as a second view. It raises if those are known from another
        call; give the others a call too, or run them under ``paused()``.

        Raises:
            ValueError, TypeError: the batch or its targets do not fit.
            RuntimeError: the draw before this one was never applied, its loss was taken without the unmixed images, or
                the mixer is detached.
        """
        if self._armed.detached:
            raise RuntimeError("this mixer is detached from its model: make a new one")
        if torch.utils.data.get_worker_info() is not None:
            raise UserError(
                "mix(x, target) was called in a worker process of a DataLoader, whose draws would be those of every "
                "other worker and epoch: call it in the training loop, not in the dataset or collate_fn"
            )
        given = x
        if self._armed.began:  # and not ended: the pass raised, for want of memory say, and the caller went on
            self._armed.disarm()
        require_applied(self._armed)
        self._require_clean_loss()
        check_batch(x, target)
        num_classes = self.num_classes or getattr(self.model, "num_classes", None)
        # On an accelerator, looking at targets waits for the device: there only those of the first batch are checked.
        look = target.device.type == "cpu" or self._batch is None
        check_splits(target, self.num_splits, look=look)
        own = own_target(target, num_classes, label_smoothing=self.label_smoothing, check_values=look)
        off = self.schedule.is_off(self._epoch or 0.0) or not self.mixup_enabled
        if self._paused or off or not self.model.training:
            draw = Draw.nothing(x)
        elif draw is None:
            clean = len(x) // self.num_splits  # the first split: its images and targets decide for all
            draw = self._make_draw(x[:clean], own[:clean]).for_splits(self.num_splits)
        else:
            draw.check(len(x), [site.name for site in self.sites])
            draw = draw.fitted(self._maps_for(x))
        changed, mixed, objective, clean_lam = None, own, None, 0.0
        if draw.mixes:
            method = draw.method or self.method
            objective, clean_lam = method.objective, method.clean_lam
            changed, mixed = mix_targets(own, draw.partner, kept=draw.kept, lam=draw.lam)
        self._armed.load(draw, x, alike=len(self._site_names) > 1)
        self._clean_loss_due = clean_lam > 0
        clean = x if self._clean_loss_due else None
        self._batch = MixedBatch(draw, target, own, changed, mixed, objective, clean, clean_lam)
        if mixed is not target:
            mark_returned(mixed, draw)
        for part in (*draw.others, draw):
            if part.change is not None and part.site == INPUT:
                x = part.change.apply(x, part.partner)
        self._armed.images.begin(given, x)
        return x, mixed

    def loss(self, output: Tensor, target: Tensor, criterion: Criterion | None = None) -> Tensor:
        """Return the loss of the last batch: the objective if it was mixed, ``criterion(output, target)`` if not.

        A method with ``clean_lam`` adds the loss of the unmixed images, for which the model runs once more.

        Args:
            output: logits, (B, K).
            target: what the mixer returned for this batch; in eval mode also the targets of any other batch, whose
                loss is ``criterion(output, target)``.
            criterion: l(output, target) on soft targets; None for cross-entropy. timm's and torch's classification
                losses are known, others get soft targets (B, K), and their losses per sample, (B,), are averaged. A
                batch that was not mixed has their own loss of the targets as they came, to the last bit.

        Raises:
            RuntimeError: the draw was never applied, so the loss would be that of a batch that was not mixed.
            TypeError: the output is no tensor, or the criterion cannot be used with mixed targets.
            ValueError: labels are smoothed by the mixer and by the criterion, the targets are not those of the last
                batch, the model has another number of classes than they, the criterion gives several losses, or the
                model trains and no batch was mixed yet.
        """
        check_logits(output)
        criterion = cross_entropy if criterion is None else criterion
        refuse_double_smoothing(self.label_smoothing, criterion)
        refuse_other_splits(self.num_splits, criterion)
        batch = self._batch
        trains = output.requires_grad
        if batch is not None and not self.model.training and is_of_another_batch(target, batch, trains=trains):
            loss = unmixed_loss(output, target, criterion, from_indices=batch.from_indices)  # validation
            return mean_loss(loss, criterion)
        require_applied(self._armed)
        if batch is None and self.model.training and self.mixup_enabled and not self._paused:
            raise UserError(
                "the loss of a training batch that was never mixed: call x, target = mix(x, target) before the forward "
                "pass; for a plain loss call model.eval(), or set mix.mixup_enabled = False"
            )
        if batch is not None:
            check_returned(target, batch.target, batch.draw)
        if batch is None or batch.changed is None:
            if batch is not None and target is batch.target:
                target = own_targets(batch, criterion, label_smoothing=self.label_smoothing)
            from_indices = batch is None or batch.from_indices
            return mean_loss(unmixed_loss(output, target, criterion, from_indices=from_indices), criterion)
        loss = mean_loss(mixed_loss(output, target, batch, criterion), criterion)
        if batch.clean is None:
            return loss
        self._clean_loss_due = False
        own = own_targets(batch, criterion, label_smoothing=self.label_smoothing)
        clean = unmixed_loss(self._clean_output(batch.clean), own, criterion, from_indices=batch.from_indices)
        return loss + batch.clean_lam * mean_loss(clean, criterion)

    @property
    def target(self) -> Tensor | None:
        """The targets that the last call returned, None before the first."""
        return None if self._batch is None else self._batch.target

    def accuracy(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the share of samples predicted as the label with the larger share of theirs: float32, 0-d.

        Args:
            output: logits, (B, K).
            target: what the mixer returned for this batch, or the labels it was given.
        """
        mixed = self._batch.target if self._batch is not None and target is self._batch.given else target
        if mixed.ndim != 2:
            raise ValueError("target must be what mix(x, target) returned, or the labels it was given, the same tensor")
        return (output.argmax(dim=1) == mixed.argmax(dim=1)).float().mean()

    def run(
        self, model: Callable[[Tensor], Tensor], x: Tensor, target: Tensor, criterion: Criterion | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mix a batch, run the model on it and return the loss and the output.

        Args:
            model: the mixer's model, or what compile, DDP or Accelerate made of it.
            x: as for calling the mixer.
            target: as for calling the mixer.
            criterion: as for ``loss``.
        """
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

    def set_epoch(self, epoch: float) -> None:
        """State the epoch, counted from 0, for the schedule: at the start of each, or before every batch as a fraction.

        What holds follows from it alone, so that it is no part of ``state_dict``.
        """
        self._epoch = check_value("epoch", epoch, float, low=0)

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
        self._armed.detach()

    def state_dict(self) -> dict[str, int]:
        """Return the state of the draws, for an exact resume; the same on every rank."""
        return self._stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue drawing where ``state_dict`` was taken."""
        self._stream.load_state_dict(state)

    def _make_draw(self, x: Tensor, own: Tensor) -> Draw:
        """Draw for a batch of images with their own targets, (B, K)."""
        maps = self._maps_for(x)
        generator = self._stream.next()
        if self._epoch is None:
            raise RuntimeError("the schedule needs the epoch: call mix.set_epoch(epoch) at the start of each")
        return make_draw(
            x,
            method=self.schedule.method_at(self.method, self._epoch),
            site_names=self._site_names,
            maps=maps,
            generator=generator,
            saliency=partial(self._saliency, x, own),
        )

    def _saliency(self, x: Tensor, own: Tensor) -> Tensor:
        with self.paused():
            return saliency(self.model, x, own)

    def _clean_output(self, images: Tensor) -> Tensor:
        """Run the model on unmixed images as training does, for the one backward pass of both losses.

        The bare model, not what DDP made of it: DDP reduces the sum of both gradients, once per parameter.
        """
        with self.paused():
            output = self.model(in_dtype_of(self.model, images))
        check_logits(output)
        return output

    def _maps_for(self, x: Tensor) -> dict[str, tuple[FeatureMap, ...]]:
        """Return what each site gives at this size of image: what cannot be mixed fails at the first batch."""
        size = x.shape[1:]
        if size not in self._maps:
            try:
                self._maps[size] = probe(self.model, self.sites, x)
            except SiteError:
                self.detach()  # so that a mixer with other sites can take its place
                raise
        return self._maps[size]

    def _require_clean_loss(self) -> None:
        if not self._clean_loss_due:
            return
        self._clean_loss_due = False
        raise RuntimeError(
            "the loss of the unmixed images (clean_lam) was left out of the last batch: take its loss with "
            "mix.loss(output, target), or set clean_lam to 0"
        )


def _sites_asked_for(method: Method) -> list[tuple[bool, tuple[str, ...]]]:
    """Return the names of sites of each member, and whether the settings state them."""
    asked = [(member.site_names, member.default_sites) for member in method.members]
    return [(names is not None, default if names is None else names) for names, default in asked]


def _syncs_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
