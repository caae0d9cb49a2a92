"""The learner: all that an update touches, and the update itself.

``Learner`` builds model, mixer, loss, optimizer, schedule and average from a recipe. ``update`` takes the next batch,
turns it into a loss and makes one step. Before every micro-batch the global generators are seeded from (seed, rank,
update, micro-batch), and the draws of the mixer and the augmentation of samples follow from such numbers too. So the
state of a learner is its weights, the state of the optimizer and a few numbers, and a killed run resumes exactly.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from math import isnan, nan
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from timm.models import model_parameters
from timm.utils import ModelEmaV3, dispatch_clip_grad, distribute_bn
from timm.utils.clip_grad import adaptive_clip_grad
from torch import Tensor, nn

from ..core.loss import cross_entropy
from ..core.sampling import derive_seed
from ..data.global_seed import seed_everything
from ..recipe import Recipe
from ..runs.checkpoint import Checkpoint
from ..runs.folder import EpochRow
from ..runs.metrics import sum_dtype
from .build import build_criterion, build_mixer, build_model, build_optimizer, build_scheduler


class Learner:
    """The model of a recipe with its mixer, loss, optimizer, schedule and average.

    Args:
        recipe: what to build.
        accelerator: wraps model and optimizer for its device and processes.
        updates_per_epoch: for schedules that change the rate or the method at every update.
        pretrained_path: a local file of pretrained weights, None for timm's own.
        class_weight: (K,), weight of each class in the loss, None for none.

    Attributes:
        unwrapped_model: the model itself; ``model`` is the one prepared by the accelerator.
        ema: the average of the weights, None if the recipe has none.
        num_epochs: epochs of the schedule, with warmup and cooldown.
        sums: (4,), of this epoch in this process: losses, samples, cross-entropies, correct predictions.
        bad_update: int64, 0-d, number of the first update whose loss was not finite, -1 if there is none.
    """

    def __init__(
        self,
        recipe: Recipe,
        accelerator: Accelerator,
        *,
        updates_per_epoch: int,
        pretrained_path: Path | None = None,
        class_weight: Tensor | None = None,
    ) -> None:
        self.recipe, self.accelerator, self.updates_per_epoch = recipe, accelerator, updates_per_epoch
        seed_everything(derive_seed(recipe.seed), accelerator.device)
        model = build_model(recipe, pretrained_path).to(accelerator.device)
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)
        # The average is a copy without hooks: made before the mixer, DDP and compilation touch the model.
        self.ema = (
            ModelEmaV3(model, decay=recipe.model_ema_decay, use_warmup=recipe.model_ema_warmup)
            if recipe.model_ema
            else None
        )
        self.mixer = build_mixer(recipe, model)
        weight = None if class_weight is None else class_weight.to(accelerator.device)
        self.criterion = build_criterion(recipe, weight)
        optimizer = build_optimizer(recipe, model)
        self.scheduler, self.num_epochs = build_scheduler(recipe, optimizer, updates_per_epoch)
        if self.scheduler is not None:
            self.scheduler.step(0) if not recipe.sched_on_updates else self.scheduler.step_update(0)
        if recipe.torchcompile:
            model.compile(backend=recipe.torchcompile)
        self.unwrapped_model = model
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.sums = torch.zeros(4, dtype=sum_dtype(accelerator.device), device=accelerator.device)
        self.bad_update = torch.full((), -1, dtype=torch.int64, device=accelerator.device)

    @property
    def evaluated_model(self) -> nn.Module:
        """The model that is evaluated and kept: the average if there is one."""
        return self.unwrapped_model if self.ema is None else self.ema.module

    @property
    def lr(self) -> float:
        """The learning rate of the next update, without layer decay."""
        group = self.optimizer.param_groups[0]
        return group["lr"] / group.get("lr_scale", 1.0)

    def update(
        self, batches: Iterator[tuple[Tensor, Tensor]], done: int, divisors: Sequence[float] | None = None
    ) -> float:
        """Update the weights once and return the seconds spent waiting for data.

        Args:
            batches: images (B, C, H, W) and labels (B,); one micro-batch per accumulation step is taken.
            done: number of updates before this one, in all epochs.
            divisors: what the loss of each micro-batch is divided by; None for their number.
        """
        waited, micro_batches = 0.0, self.recipe.grad_accum_steps
        divisors = divisors or [micro_batches] * micro_batches
        self.mixer.set_epoch(done / self.updates_per_epoch)
        for index in range(micro_batches):
            asked = time.perf_counter()
            images, labels = next(batches)
            waited += time.perf_counter() - asked
            # After the images: those that are loaded in this process seed the generators themselves.
            seed = derive_seed(self.recipe.seed, 2, self.accelerator.process_index, done, index)
            seed_everything(seed, self.accelerator.device)
            with self.accelerator.no_sync(self.model) if index < micro_batches - 1 else nullcontext():
                loss, measured = self._loss(images, labels)
                self.accelerator.backward(loss / divisors[index] if divisors[index] != 1 else loss)
            self._count(loss.detach(), measured, len(labels), done + 1)
        if self.recipe.clip_grad is not None:
            self._clip(self.recipe.clip_grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update(self.unwrapped_model, step=done + 1)  # counted from 1, as timm does
        if self.scheduler is not None:
            self.scheduler.step_update(done + 1)
        return waited

    def _loss(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of a micro-batch, and its cross-entropy and accuracy, (2,)."""
        images = images.to(self.accelerator.device, non_blocking=True)
        labels = labels.to(self.accelerator.device, non_blocking=True)
        if self.recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        processes = self.accelerator.num_processes
        if self.mixer.method.needs_saliency and processes > 1:
            # All processes use the statistics of a checkpoint; DDP syncs them only when its own forward is called.
            distribute_bn(self.unwrapped_model, processes, reduce=False)
        loss, output = self.mixer.run(self.model, images, labels, self.criterion)
        return loss, self._measure(output.detach(), labels)

    def _measure(self, output: Tensor, labels: Tensor) -> Tensor:
        """Return cross-entropy and accuracy as validation has them: of the mixed targets, not doubled, not smoothed."""
        target, smoothing = self.mixer.target, self.recipe.smoothing
        assert target is not None
        target = (target - smoothing / target.shape[1]) / (1.0 - smoothing) if smoothing else target
        return torch.stack([cross_entropy(output.float(), target), self.mixer.accuracy(output, labels)])

    def _clip(self, value: float) -> None:
        self.accelerator.unscale_gradients(self.optimizer)
        if self.recipe.clip_mode == "agc":  # without the classifier, as in timm
            adaptive_clip_grad(model_parameters(self.unwrapped_model, exclude_head=True), value)
        else:
            dispatch_clip_grad(self.unwrapped_model.parameters(), value, mode=self.recipe.clip_mode)

    def _count(self, loss: Tensor, measured: Tensor, samples: int, update: int) -> None:
        """Add up losses and accuracies on the device: reading them would wait for the device."""
        nll, accuracy = measured.to(self.sums)
        parts = [loss.to(self.sums), torch.ones_like(self.sums[0]), nll, accuracy]
        self.sums += torch.stack(parts) * samples
        first_bad = (self.bad_update < 0) & ~torch.isfinite(loss)
        self.bad_update = torch.where(first_bad, update, self.bad_update)

    def mean_loss(self) -> float:
        """Return the mean loss of this epoch so far, in this process."""
        return (self.sums[0] / self.sums[1]).item()

    def pop_epoch(self) -> EpochRow:
        """Return the means of this epoch over all processes by their columns, and reset the sums."""
        loss, count, nll, right = self.accelerator.reduce(self.sums.clone(), "sum").tolist()
        self.sums.zero_()
        means = {"train_loss": loss / count, "train_nll": nll / count, "train_top1": 100.0 * right / count}
        return {name: None if isnan(mean) else mean for name, mean in means.items()}

    def sync_batch_norm(self) -> None:
        """Give all processes the same statistics of the norm layers."""
        processes = self.accelerator.num_processes
        if processes == 1:
            return
        distribute_bn(self.unwrapped_model, processes, reduce=self.recipe.dist_bn == "reduce")
        if self.ema is not None:
            # A checkpoint has the average of the first process: all take that one, so that a resume is exact.
            distribute_bn(self.ema.module, processes, reduce=False)

    def is_finite(self) -> bool:
        """Return whether all weights and statistics are finite."""
        values = [value for value in self.unwrapped_model.state_dict().values() if value.is_floating_point()]
        return all(bool(torch.isfinite(value).all()) for value in values)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs besides the weights; a collective call."""
        scaler = self.accelerator.scaler
        return {
            "sums": self.accelerator.gather(self.sums[None]).cpu(),
            "optimizer": self.optimizer.state_dict(),
            "mixer": self.mixer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def restore(self, checkpoint: Checkpoint, *, epochs: int, updates: int) -> list[str]:
        """Restore a checkpoint written after that many epochs and updates; return notes for the user."""
        state = checkpoint.state
        self.unwrapped_model.load_state_dict(checkpoint.model)
        if self.ema is not None and checkpoint.ema is not None:
            self.ema.module.load_state_dict(checkpoint.ema)
        self.optimizer.load_state_dict(state["optimizer"])
        self.mixer.load_state_dict(state["mixer"])
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        if self.scheduler is not None:
            self.scheduler.step(epochs)
            self.scheduler.step_update(updates)
        sums, rank = state["sums"].to(self.sums), self.accelerator.process_index
        # Earlier releases summed the loss alone: of the epoch that is resumed, the other means are not known.
        sums = nn.functional.pad(sums, (0, len(self.sums) - sums.shape[1]), value=nan)
        if not sums[:, 1].any():
            sums.zero_()
        if len(sums) == self.accelerator.num_processes:
            self.sums.copy_(sums[rank])
            return []
        self.sums.copy_(sums.sum(dim=0) if rank == 0 else torch.zeros_like(self.sums))
        return [
            f"the checkpoint was written by {len(sums)} process(es), now there are {self.accelerator.num_processes}: "
            f"the run resumes, but not bit for bit"
        ]
