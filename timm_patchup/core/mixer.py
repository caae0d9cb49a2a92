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
from .attach import attach, refuse_wrapped
from .draw import Draw, make_draw
from .hooks import Arming
from .layout import FeatureMap
from .loss import Criterion, MixedBatch, read_targets, require_logits, unmixed_loss, usable_criterion, was_returned
from .method import Method
from .probe import in_dtype_of, probe, saliency
from .sampling import Stream
from .schedule import Schedule
from .settings import check_value
from .sites import Site, resolve_sites
from .tokens import refuse_unreadable_tokens


class Mixer:
    """Mixes a model's batches with a method.

    Args:
        model: of timm, torchvision, transformers or your own, before torch.compile or any distributed wrapper.
        method: what is altered, such as ``HardPatchUp(gamma=0.4)``.
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets before they are mixed, in [0, 1).
        seed: seed of the draws; each rank draws its own.
        schedule: what changes from epoch to epoch, which ``set_epoch`` sets; None for nothing.
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
            member.check_model(model)
            sites |= own
            self._site_names.append(tuple(own))
        self.sites = list(sites.values())
        self.schedule = schedule or Schedule()
        self.schedule.check(method)
        self._is_scheduled = self.schedule.is_needed
        self._epoch = None if self._is_scheduled else 0.0
        refuse_unreadable_tokens(model, self.sites)
        self.mixup_enabled = True
        self._batch: MixedBatch | None = None
        self._loss_is_due = False
        self._maps: dict[torch.Size, dict[str, tuple[FeatureMap, ...]]] = {}
        self._stream = Stream(check_value("seed", seed, int, low=0))
        self._arming = Arming()
        attach(self._arming, model, self.sites)

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
            member.check_model(self.model)
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
        self._require_free()
        own = self._own_targets(x, target)
        draw = self._draw_for(x, own) if draw is None else self._replayed(draw, x)
        batch = self._mixed_batch(draw, x, target, own)
        return self._arm(batch, x), batch.target

    def loss(self, output: Tensor, target: Tensor, criterion: Criterion | None = None) -> Tensor:
        """Return the loss of the last batch: the objective if it was mixed, ``criterion(output, target)`` if not.

        A target that ``mix`` returned belongs to its batch, which must be the last one. In eval mode any other target
        is validation, and has its plain loss. In train mode any other target must be a copy of the last batch's, or
        labels if that was not mixed.

        Args:
            output: logits, (B, K).
            target: what the mixer returned for this batch, or the targets of a validation batch.
            criterion: l(output, target) on soft targets; None for cross-entropy. timm's and torch's classification
                losses are known, others get soft targets (B, K), and their losses per sample, (B,), are averaged. A
                batch that was not mixed has their own loss of the targets as they came, to the last bit.

        Raises:
            RuntimeError: the draw was never applied, so the loss would belong to a batch that was not mixed.
            TypeError: the output is not a tensor, or the criterion cannot be used with mixed targets.
            ValueError: labels are smoothed by the mixer and by the criterion, the targets are not from the last
                batch, the model has another number of classes than they, the criterion gives several losses, or the
                model trains and no batch was mixed yet.
        """
        criterion = usable_criterion(
            criterion, output, label_smoothing=self.label_smoothing, num_splits=self.num_splits
        )
        batch = self._batch
        if batch is None:
            self._require_validation()
            return unmixed_loss(output, target, criterion)
        # Labels of the last batch without a gradient: the loss of its images as they came, as validation.
        labels_of_batch = target is batch.given and output.requires_grad
        if not (self.model.training or labels_of_batch or batch.owns(target) or was_returned(target)):
            return batch.unmixed_loss(output, target, criterion)
        self._arming.require_applied(self.model, at_loss=True)
        batch.require(target)
        loss = batch.loss(output, target, criterion)
        if batch.images is None:
            return loss
        self._loss_is_due = False
        return loss + self._acting(batch.draw).added_loss(partial(self._unmixed_loss, batch, criterion))

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

    def two_labels(self, target: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return each sample's label, its partner's and the weight of the first; a target is their weighted sum.

        Args:
            target: what the last call returned.

        Returns:
            int64 (B,) twice and float32, 0-d or (B,); None for any other target, or if labels did not come as indices.
        """
        return None if self._batch is None or not self._batch.owns(target) else self._batch.two_labels

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
            x: images like the training images, (B, C, H, W), floating point; the model is run on them once.

        Raises:
            SiteError: a site gives no feature map; the message lists the sites that do.
        """
        self._maps_for(x)

    def set_epoch(self, epoch: float) -> None:
        """State the epoch, counted from 0, for the schedule: at the start of each, or before every batch as a fraction.

        What holds follows from it alone, so it is not part of ``state_dict``.
        """
        self._epoch = check_value("epoch", epoch, float, low=0)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Alter nothing inside, whatever is drawn: for a clean forward pass in train mode."""
        with self._arming.paused():
            yield

    def detach(self) -> None:
        """Take every hook off the model, which is then as it was."""
        self._arming.detach()

    def state_dict(self) -> dict[str, int]:
        """Return the state of the draws, for an exact resume; the same on every rank."""
        return self._stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue drawing where ``state_dict`` was taken."""
        self._stream.load_state_dict(state)

    def _require_free(self) -> None:
        """Raise if no batch can be mixed now: the mixer is detached, or the last batch is not done with."""
        if self._arming.detached:
            raise RuntimeError("this mixer is detached from its model: make a new one")
        if torch.utils.data.get_worker_info() is not None:
            raise UserError(
                "mix(x, target) was called in a worker process of a DataLoader, whose draws would be the same in all "
                "workers and epochs: call it in the training loop, not in the dataset or collate_fn"
            )
        self._arming.require_applied(self.model, at_loss=False)
        if self._loss_is_due and self._batch is not None:
            self._loss_is_due = False
            raise RuntimeError(
                f"the loss of the unmixed images, which {self._acting(self._batch.draw).name} adds, was left out of "
                f"the last batch: take its loss with mix.loss(output, target)"
            )

    def _require_validation(self) -> None:
        """Raise UserError if a loss is taken in training, although no batch was mixed."""
        if self.model.training and self.mixup_enabled and not self._arming.is_paused:
            raise UserError(
                "the loss of a training batch that was never mixed: call x, target = mix(x, target) before the forward "
                "pass; for a plain loss call model.eval(), or set mix.mixup_enabled = False"
            )

    def _own_targets(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the targets of a batch as distributions, (B, K), before they are mixed."""
        return read_targets(
            x,
            target,
            self.num_classes or getattr(self.model, "num_classes", None),
            label_smoothing=self.label_smoothing,
            num_splits=self.num_splits,
            # On an accelerator, looking at targets waits for the device: there only in the first batch.
            check_values=self._batch is None or target.device.type == "cpu",
        )

    @property
    def _is_off(self) -> bool:
        """Whether batches are left as they are, whatever is drawn."""
        off = self._arming.is_paused or not self.mixup_enabled or not self.model.training
        return off or (self._is_scheduled and self.schedule.is_off(self._epoch or 0.0))

    def _draw_for(self, x: Tensor, own: Tensor) -> Draw:
        """Draw for a batch of images with their own targets, (B, K)."""
        if self._is_off:
            return Draw.nothing(x)
        maps = self._maps_for(x)
        generator = self._stream.next()
        if self._epoch is None:
            raise RuntimeError("the schedule needs the epoch: call mix.set_epoch(epoch) at the start of each")
        first = len(x) // self.num_splits  # the first split: its images and targets decide for all
        draw = make_draw(
            x[:first],
            method=self.schedule.method_at(self._method, self._epoch) if self._is_scheduled else self._method,
            site_names=self._site_names,
            maps=maps,
            generator=generator,
            saliency=partial(self._saliency, x[:first], own[:first]),
        )
        return draw.for_splits(self.num_splits) if self.num_splits > 1 else draw

    def _replayed(self, draw: Draw, x: Tensor) -> Draw:
        """Return a draw made before, for this batch."""
        if self._is_off:
            return Draw.nothing(x)
        draw.check(len(x), [site.name for site in self.sites])
        return draw.fitted(self._maps_for(x))

    def _saliency(self, x: Tensor, own: Tensor) -> Tensor:
        with self.paused():
            return saliency(self.model, x, own)

    def _mixed_batch(self, draw: Draw, x: Tensor, target: Tensor, own: Tensor) -> MixedBatch:
        """Return what the loss of a batch needs; its images only if the method adds to the loss."""
        method = self._acting(draw) if draw.mixes else None
        images = x if method is not None and method.adds_loss else None
        objective = None if method is None else method.objective
        return MixedBatch(draw, target, own, self.label_smoothing > 0.0, objective, images)

    def _arm(self, batch: MixedBatch, x: Tensor) -> Tensor:
        """Arm the draw of a batch for its forward pass, and return the images as they are given to the model."""
        returned = batch.draw.at_input(x)
        self._arming.load(batch.draw, x, returned, same_graph_inputs=len(self._site_names) > 1)
        self._batch, self._loss_is_due = batch, batch.images is not None
        return returned

    def _acting(self, draw: Draw) -> Method:
        """Return the method that acted; a draw made by hand may have none."""
        return draw.method or self.method

    def _unmixed_loss(self, batch: MixedBatch, criterion: Criterion) -> Tensor:
        """Run the model on a batch's unmixed images as training does, for one backward pass of both losses.

        The bare model, not what DDP made of it: DDP reduces the sum of both gradients, once per parameter.
        """
        assert batch.images is not None
        with self.paused():
            output = self.model(in_dtype_of(self.model, batch.images))
        require_logits(output)
        return batch.unmixed_loss(output, batch.own_targets(criterion), criterion)

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


def _sites_asked_for(method: Method) -> list[tuple[bool, tuple[str, ...]]]:
    """Return the names of sites of each member, and whether the settings state them."""
    asked = [(member.site_names, member.default_sites) for member in method.members]
    return [(names is not None, default if names is None else names) for names, default in asked]
