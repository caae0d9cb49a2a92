"""The learner: all that an update touches, and the update itself.

``Learner`` builds model, mixer, loss, optimizer, schedule and average from a recipe. ``update`` takes the next batch,
turns it into a loss and makes one step. Before every micro-batch the global generators are seeded from (seed, rank,
update, micro-batch), and the draws of the mixer and the augmentation of samples follow from such numbers too. So the
state of a learner is its weights, the state of the optimizer and a few numbers, and a killed run resumes exactly.
"""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from timm.models import model_parameters
from timm.utils import ModelEmaV3, dispatch_clip_grad, distribute_bn
from timm.utils.clip_grad import adaptive_clip_grad
from torch import Tensor, nn

from ..core.seeding import derive_seed
from ..data.draws import seed_everything
from ..recipe import Recipe
from ..runs.checkpoint import Checkpoint
from ..runs.metrics import sum_dtype
from .build import build_criterion, build_mixer, build_model, build_optimizer, build_scheduler


class Learner:
    """The model of a recipe with its mixer, loss, optimizer, schedule and average.

    Args:
        recipe: what to build.
        accelerator: wraps model and optimizer for its device and processes.
        updates_per_epoch: for schedules that change the rate at every update.
        pretrained_path: a local file of pretrained weights, None for timm's own.
        class_weight: (K,), weight of each class in the loss, None for none.

    Attributes:
        unwrapped_model: the model itself; ``model`` is the one prepared by the accelerator.
        ema: the average of the weights, None if the recipe has none.
        num_epochs: epochs of the schedule, with warmup and cooldown.
        loss_sums: (2,), sum of the losses and number of samples of this epoch, in this process.
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
        self.recipe, self.accelerator = recipe, accelerator
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
        self.loss_sums = torch.zeros(2, dtype=sum_dtype(accelerator.device), device=accelerator.device)
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

    def update(self, batches: Iterator[tuple[Tensor, Tensor]], done: int) -> float:
        """Update the weights once and return the seconds spent waiting for data.

        Args:
            batches: images (B, C, H, W) and labels (B,); one micro-batch per accumulation step is taken.
            done: number of updates before this one, in all epochs.
        """
        waited, micro_batches = 0.0, self.recipe.grad_accum_steps
        for index in range(micro_batches):
            asked = time.perf_counter()
            images, labels = next(batches)
            waited += time.perf_counter() - asked
            # After the images: those that are loaded in this process seed the generators themselves.
            seed = derive_seed(self.recipe.seed, 2, self.accelerator.process_index, done, index)
            seed_everything(seed, self.accelerator.device)
            with self.accelerator.no_sync(self.model) if index < micro_batches - 1 else nullcontext():
                loss = self._loss(images, labels)
                self.accelerator.backward(loss / micro_batches if micro_batches > 1 else loss)
            self._count(loss.detach(), len(labels), done + 1)
        if self.recipe.clip_grad is not None:
            self._clip(self.recipe.clip_grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update(self.unwrapped_model, step=done)
        if self.scheduler is not None:
            self.scheduler.step_update(done + 1)
        return waited

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a micro-batch."""
        images = images.to(self.accelerator.device, non_blocking=True)
        labels = labels.to(self.accelerator.device, non_blocking=True)
        if self.recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        processes = self.accelerator.num_processes
        if self.mixer.method.needs_saliency and processes > 1:
            # All processes use the statistics of a checkpoint; DDP syncs them only when its own forward is called.
            distribute_bn(self.unwrapped_model, processes, reduce=False)
        return self.mixer.run(self.model, images, labels, self.criterion)[0]

    def _clip(self, value: float) -> None:
        self.accelerator.unscale_gradients(self.optimizer)
        if self.recipe.clip_mode == "agc":  # without the classifier, as in timm
            adaptive_clip_grad(model_parameters(self.unwrapped_model, exclude_head=True), value)
        else:
            dispatch_clip_grad(self.unwrapped_model.parameters(), value, mode=self.recipe.clip_mode)

    def _count(self, loss: Tensor, samples: int, update: int) -> None:
        """Add up the loss on the device: reading it would wait for the device."""
        self.loss_sums += torch.stack([loss.to(self.loss_sums) * samples, torch.full_like(self.loss_sums[0], samples)])
        first_bad = (self.bad_update < 0) & ~torch.isfinite(loss)
        self.bad_update = torch.where(first_bad, update, self.bad_update)

    def mean_loss(self) -> float:
        """Return the mean loss of this epoch so far, in this process."""
        return (self.loss_sums[0] / self.loss_sums[1]).item()

    def pop_epoch_loss(self) -> float:
        """Return the mean loss of this epoch over all processes, and reset the sums."""
        loss_sum, count = self.accelerator.reduce(self.loss_sums.clone(), "sum").tolist()
        self.loss_sums.zero_()
        return loss_sum / count

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
            "sums": self.accelerator.gather(self.loss_sums[None]).cpu(),
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
        sums, rank = state["sums"].to(self.loss_sums), self.accelerator.process_index
        if len(sums) == self.accelerator.num_processes:
            self.loss_sums.copy_(sums[rank])
            return []
        self.loss_sums.copy_(sums.sum(dim=0) if rank == 0 else torch.zeros_like(self.loss_sums))
        return [
            f"the checkpoint was written by {len(sums)} process(es), now there are {self.accelerator.num_processes}: "
            f"the run resumes, but not bit for bit"
        ]
