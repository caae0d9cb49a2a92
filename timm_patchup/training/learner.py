"""What learns, and one update of it: here a batch of the loader becomes a loss, and the loss a step.

``Learner`` makes everything of a recipe that an update touches; ``update`` takes the next batch, mixes it, and steps.
Before every piece of an update the global generators are seeded from (seed, rank, update, piece), and the mixer's draws
and the samples' augmentations follow from such numbers as well. So its state is weights, the optimiser's, and a handful
of numbers, and a run that was killed goes on exactly where its last checkpoint is.
"""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from timm.models import model_parameters
from timm.utils import ModelEmaV3, dispatch_clip_grad, distribute_bn
from timm.utils.clip_grad import adaptive_clip_grad
from torch import Tensor, nn

from ..core.seeding import derive_seed
from ..data.transforms import seed_everything
from ..recipe import Recipe
from ..runs.checkpoint import Checkpoint
from ..runs.metrics import sum_dtype
from .build import build_criterion, build_mixer, build_model, build_optimizer, build_scheduler


class Learner:
    """The model of a recipe with its mixer, loss, optimiser, schedule and average.

    Args:
        recipe: says what to make.
        accelerator: wraps model and optimiser for its device and processes.
        updates_per_epoch: for schedules that change the rate at every update.

    Attributes:
        plain: the model itself; ``model`` is what the accelerator made of it.
        ema: the average of the weights, None unless the recipe asks for one.
        num_epochs: epochs of the schedule, with warm-up and cool-down.
        loss_sums: (2,), sum of the losses and number of samples of this epoch, in this process.
        bad_update: int64, 0-d, number of the first update whose loss was not finite; -1 while there is none.
    """

    def __init__(self, recipe: Recipe, accelerator: Accelerator, *, updates_per_epoch: int) -> None:
        self.recipe, self.accelerator = recipe, accelerator
        seed_everything(derive_seed(recipe.seed))
        model = build_model(recipe).to(accelerator.device)
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)
        # The average is a copy without hooks: made before the mixer, DDP and compilation touch the model.
        self.ema = (
            ModelEmaV3(model, decay=recipe.model_ema_decay, use_warmup=recipe.model_ema_warmup)
            if recipe.model_ema
            else None
        )
        self.mixer = build_mixer(recipe, model)
        self.criterion = build_criterion(recipe)
        optimizer = build_optimizer(recipe, model)
        self.scheduler, self.num_epochs = build_scheduler(recipe, optimizer, updates_per_epoch)
        if self.scheduler is not None:
            self.scheduler.step(0) if not recipe.sched_on_updates else self.scheduler.step_update(0)
        if recipe.torchcompile:
            model.compile(backend=recipe.torchcompile)
        self.plain = model
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.loss_sums = torch.zeros(2, dtype=sum_dtype(accelerator.device), device=accelerator.device)
        self.bad_update = torch.full((), -1, dtype=torch.int64, device=accelerator.device)

    @property
    def evaluated(self) -> nn.Module:
        """The weights that are evaluated and kept: the average if there is one."""
        return self.plain if self.ema is None else self.ema.module

    @property
    def rate(self) -> float:
        """The learning rate of the next update."""
        return self.optimizer.param_groups[0]["lr"]

    def update(self, batches: Iterator[tuple[Tensor, Tensor]], done: int) -> float:
        """Make one update of the weights and return the seconds spent waiting for images.

        Args:
            batches: images (B, C, H, W) and labels (B,); one for each accumulation step is taken.
            done: number of updates before this one, in all epochs.
        """
        waited, pieces = 0.0, self.recipe.grad_accum_steps
        for piece in range(pieces):
            asked = time.perf_counter()
            images, labels = next(batches)
            waited += time.perf_counter() - asked
            # Not before the images: where they are made in this process, they seed for themselves.
            seed_everything(derive_seed(self.recipe.seed, 2, self.accelerator.process_index, done, piece))
            with self.accelerator.no_sync(self.model) if piece < pieces - 1 else nullcontext():
                loss = self._loss(images, labels)
                self.accelerator.backward(loss / pieces if pieces > 1 else loss)
            self._count(loss.detach(), len(labels), done + 1)
        if self.recipe.clip_grad is not None:
            self._clip(self.recipe.clip_grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update(self.plain, step=done)
        if self.scheduler is not None:
            self.scheduler.step_update(done + 1)
        return waited

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch that is mixed on its way into the model or through it."""
        images = images.to(self.accelerator.device, non_blocking=True)
        labels = labels.to(self.accelerator.device, non_blocking=True)
        if self.recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        processes = self.accelerator.num_processes
        if self.mixer.method.needs_saliency and processes > 1:
            # All see the statistics that a checkpoint would hold; DDP shares them only on the way into its forward.
            distribute_bn(self.plain, processes, reduce=False)
        mixed, target = self.mixer(images, labels)
        return self.mixer.loss(self.model(mixed), target, self.criterion)

    def _clip(self, value: float) -> None:
        self.accelerator.unscale_gradients(self.optimizer)
        if self.recipe.clip_mode == "agc":
            adaptive_clip_grad(model_parameters(self.plain, exclude_head=True), value)  # not the classifier, as in timm
        else:
            dispatch_clip_grad(self.plain.parameters(), value, mode=self.recipe.clip_mode)

    def _count(self, loss: Tensor, samples: int, update: int) -> None:
        """Keep the loss on the device: to look at it would wait."""
        self.loss_sums += torch.stack([loss.to(self.loss_sums) * samples, torch.full_like(self.loss_sums[0], samples)])
        first_bad = (self.bad_update < 0) & ~torch.isfinite(loss)
        self.bad_update = torch.where(first_bad, update, self.bad_update)

    def mean_loss(self) -> float:
        """Return the mean loss of this epoch so far, in this process."""
        return (self.loss_sums[0] / self.loss_sums[1]).item()

    def take_loss(self) -> float:
        """Return the mean loss of this epoch over all processes, and begin to count anew."""
        loss_sum, count = self.accelerator.reduce(self.loss_sums.clone(), "sum").tolist()
        self.loss_sums.zero_()
        return loss_sum / count

    def share_statistics(self) -> None:
        """Give all processes the same statistics of the norm layers."""
        processes = self.accelerator.num_processes
        if processes == 1:
            return
        distribute_bn(self.plain, processes, reduce=self.recipe.dist_bn == "reduce")
        if self.ema is not None:
            # A checkpoint holds the average of the first process: all take that one, so that a resume is exact.
            distribute_bn(self.ema.module, processes, reduce=False)

    def is_finite(self) -> bool:
        """Whether all weights and statistics are numbers."""
        values = [value for value in self.plain.state_dict().values() if value.is_floating_point()]
        return all(bool(torch.isfinite(value).all()) for value in values)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resume needs besides the weights; all processes come here together."""
        scaler = self.accelerator.scaler
        return {
            "sums": self.accelerator.gather(self.loss_sums[None]).cpu(),
            "optimizer": self.optimizer.state_dict(),
            "mixer": self.mixer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def restore(self, checkpoint: Checkpoint, *, epochs: int, updates: int) -> list[str]:
        """Go on from a checkpoint after so many epochs and updates; return what the user should know about it."""
        state = checkpoint.state
        self.plain.load_state_dict(checkpoint.model)
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
            f"the checkpoint is of {len(sums)} processes, now there are {self.accelerator.num_processes}: "
            f"the run goes on, but not bit for bit as it would have"
        ]
