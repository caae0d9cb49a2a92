"""The training loop: batches, mixing, updates, epochs, the best model, its test.

Follow a batch: ``data/loader.py`` gives it, ``_update`` mixes it and steps, ``_end_epoch`` measures and saves. The
state of a run is its weights, the optimiser's, and a handful of numbers: before every update the global generators are
seeded from (seed, rank, update), the mixer's draws and the samples' augmentations follow from such numbers as well, so
a run that was killed goes on exactly where its last checkpoint is.
"""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator
from timm.utils import ModelEmaV3, dispatch_clip_grad, distribute_bn
from timm.utils.clip_grad import adaptive_clip_grad
from torch import Tensor, nn

from ..data.loader import Data, evaluation_loader, training_loader
from ..data.transforms import seed_everything
from ..draw import derive_seed
from ..recipe import Recipe
from .build import build_criterion, build_mixer, build_model, build_optimizer, build_scheduler
from .checkpoint import Checkpoint, Checkpoints
from .curves import draw_curves
from .evaluate import Metrics, evaluate, sum_dtype
from .progress import Progress
from .run_folder import Row, RunFolder
from .stopping import NonFinite, Stopped, StopSignal

_CURVES_SECONDS = 60.0


@dataclass
class Position:
    """Where a run is, and what it has to remember."""

    epoch: int = 0
    update: int = 0  # done in this epoch
    total: int = 0  # done in all epochs
    rows: list[Row] = field(default_factory=list)
    best_epoch: int | None = None
    best_value: float | None = None
    best_file: str | None = None


class Trainer:
    """One run of a recipe."""

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        folder: RunFolder,
        accelerator: Accelerator,
        *,
        stop: StopSignal | None = None,
    ) -> None:
        self.recipe, self.data, self.folder, self.accelerator = recipe, data, folder, accelerator
        self.stop = stop or StopSignal()
        self.position = Position()
        self.checkpoints = Checkpoints(folder.checkpoints, keep=recipe.checkpoint_hist)
        rank, world_size = accelerator.process_index, accelerator.num_processes
        pin = accelerator.device.type == "cuda"
        self.loader, self.batches = training_loader(
            data.train, recipe, rank=rank, world_size=world_size, pin_memory=pin
        )
        self.val_loader = evaluation_loader(data.val, recipe, rank=rank, world_size=world_size, pin_memory=pin)

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
        self.scheduler, self.num_epochs = build_scheduler(recipe, optimizer, self.batches.updates)
        if self.scheduler is not None:
            self.scheduler.step(0) if not recipe.sched_on_updates else self.scheduler.step_update(0)
        if recipe.torchcompile:
            model.compile(backend=recipe.torchcompile)
        self.plain = model
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.progress = Progress(
            enabled=accelerator.is_main_process,
            num_epochs=self.num_epochs,
            updates=self.batches.updates,
            batch_size=recipe.batch_size,
            interval=recipe.log_interval,
        )
        zeros = torch.zeros(2, dtype=sum_dtype(accelerator.device), device=accelerator.device)
        self._sums = zeros  # of the loss and of the samples of this epoch, in this process
        self._bad_update = torch.full((), -1, dtype=torch.int64, device=accelerator.device)
        self._curves_at = time.perf_counter()

    @property
    def evaluated(self) -> nn.Module:
        """The weights that are evaluated and kept: the average if there is one."""
        return self.plain if self.ema is None else self.ema.module

    def fit(self) -> dict[str, Any]:
        """Train to the end, test the best model once and return the results."""
        while self.position.epoch < self.num_epochs:
            self._train_epoch()
            self._end_epoch()
            if self._asked_to_stop():
                raise Stopped(self.stop.signal, self._newest())
        return self._test()

    # One epoch

    def _train_epoch(self) -> None:
        position = self.position
        self.model.train()
        self.batches.begin(position.epoch, position.update)
        self.progress.begin_epoch(position.epoch, position.update)
        batches = iter(self.loader)
        for update in range(position.update, self.batches.updates):
            start = time.perf_counter()
            waited = self._update(batches)
            position.update = update + 1
            position.total += 1
            if self.scheduler is not None:
                self.scheduler.step_update(position.total)
            shown = self._mean_loss() if self.progress.wants_loss(update + 1) else None
            seconds = time.perf_counter() - start
            self.progress.advance(waited=waited, seconds=seconds, update=update + 1, loss=shown)
            if position.update < self.batches.updates:  # the last update is part of the end of the epoch
                self._between_updates()

    def _update(self, batches: Iterator[tuple[Tensor, Tensor]]) -> float:
        """Make one update of the weights and return the seconds spent waiting for images."""
        waited = 0.0
        pieces = self.recipe.grad_accum_steps
        for piece in range(pieces):
            asked = time.perf_counter()
            images, labels = next(batches)
            waited += time.perf_counter() - asked
            if piece == 0:
                seed_everything(derive_seed(self.recipe.seed, 2, self.accelerator.process_index, self.position.total))
            images = images.to(self.accelerator.device, non_blocking=True)
            labels = labels.to(self.accelerator.device, non_blocking=True)
            if self.recipe.channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            with self.accelerator.no_sync(self.model) if piece < pieces - 1 else nullcontext():
                mixed, target = self.mixer(images, labels)
                loss = self.mixer.loss(self.model(mixed), target, self.criterion)
                self.accelerator.backward(loss / pieces if pieces > 1 else loss)
            self._count(loss.detach(), len(labels))
        if self.recipe.clip_grad is not None:
            self._clip(self.recipe.clip_grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update(self.plain, step=self.position.total)
        return waited

    def _clip(self, value: float) -> None:
        self.accelerator.unscale_gradients(self.optimizer)
        parameters = list(self.plain.parameters())
        if self.recipe.clip_mode == "agc":
            adaptive_clip_grad(parameters, value)
        else:
            dispatch_clip_grad(parameters, value, mode=self.recipe.clip_mode)

    def _count(self, loss: Tensor, samples: int) -> None:
        self._sums += torch.stack([loss.to(self._sums) * samples, torch.full_like(self._sums[0], samples)])
        first_bad = (self._bad_update < 0) & ~torch.isfinite(loss)
        self._bad_update = torch.where(first_bad, self.position.total + 1, self._bad_update)

    def _mean_loss(self) -> float:
        return (self._sums[0] / self._sums[1]).item()

    def _between_updates(self) -> None:
        """Stop where asked, complain of a loss that is not finite, and save every so many updates."""
        every = self.recipe.checkpoint_steps
        due = every > 0 and self.position.total % every == 0
        on_cpu = self.accelerator.device.type == "cpu"
        if not (due or on_cpu or self.position.total % 10 == 0):  # to look waits for the device
            return
        stop = self._asked_to_stop()
        if due or stop:
            self._save()
        if stop:
            raise Stopped(self.stop.signal, self._newest())

    def _asked_to_stop(self) -> bool:
        """Return whether any process was asked to stop; raise NonFinite where any has lost its loss."""
        own = torch.tensor([[self.stop.signal, 0]], device=self.accelerator.device)
        own[0, 1] = self._bad_update
        signals, bad = self.accelerator.gather(own).unbind(dim=1)
        first_bad = bad[bad >= 0]
        if len(first_bad):
            raise NonFinite(int(first_bad.min()), self._newest())
        self.stop.signal = int(signals.max())
        return self.stop.signal > 0

    def _end_epoch(self) -> None:
        position, recipe = self.position, self.recipe
        self._asked_to_stop()  # a loss that is not finite must not reach a checkpoint
        if self.accelerator.num_processes > 1:
            distribute_bn(self.plain, self.accelerator.num_processes, reduce=recipe.dist_bn == "reduce")
            if self.ema is not None:
                # A checkpoint holds the average of the first process: all take that one, so that a resume is exact.
                distribute_bn(self.ema.module, self.accelerator.num_processes, reduce=False)
        rate = self.optimizer.param_groups[0]["lr"]
        loss_sum, count = self.accelerator.reduce(self._sums.clone(), "sum").tolist()
        self._sums.zero_()
        number = position.epoch + 1
        last = number == self.num_epochs
        metrics = self._evaluate() if number % recipe.val_interval == 0 or last else None
        row: Row = {
            "epoch": number,
            "lr": rate,
            "train_loss": loss_sum / count,
            "val_loss": metrics.loss if metrics else None,
            "val_top1": metrics.top1 if metrics else None,
            "val_top5": metrics.top5 if metrics else None,
            "val_error": metrics.error if metrics else None,
        }
        position.rows.append(row)
        is_best = metrics is not None and self._is_best(metrics)
        if metrics is not None and is_best:
            position.best_epoch, position.best_value = number, self._value(metrics)
            position.best_file = self.checkpoints.best_name(number)
            if self.accelerator.is_main_process:
                self.checkpoints.save_best(position.best_file, self.evaluated.state_dict())
        position.epoch, position.update = number, 0
        if self.scheduler is not None:
            self.scheduler.step(number)
        self._save()
        if self.accelerator.is_main_process:
            self.folder.write_summary(position.rows)
            if is_best and position.best_file:
                self.folder.copy_in(self.checkpoints.folder / position.best_file, "model.safetensors")
            if last or time.perf_counter() - self._curves_at > _CURVES_SECONDS:
                self._draw()
        self.accelerator.log({name: value for name, value in row.items() if value is not None}, step=number)
        self.progress.end_epoch(row, best=is_best and self.data.held_out)

    def _evaluate(self) -> Metrics:
        return evaluate(self.evaluated, self.val_loader, self.accelerator, channels_last=self.recipe.channels_last)

    def _value(self, metrics: Metrics) -> float:
        return metrics.top1 if self.recipe.eval_metric == "top1" else -metrics.loss

    def _is_best(self, metrics: Metrics) -> bool:
        """Whether to keep these weights: the latest with the best value, or the last where nothing is held out."""
        if not self.data.held_out or self.position.best_value is None:
            return True
        return self._value(metrics) >= self.position.best_value

    def _draw(self) -> None:
        self._curves_at = time.perf_counter()
        draw_curves(
            self.position.rows,
            self.folder.path / "curves.png",
            title=self.folder.name,
            best_epoch=self.position.best_epoch if self.data.held_out else None,
            val_name="validation" if self.data.held_out else "test",
        )

    # The end

    def _test(self) -> dict[str, Any]:
        """Test the best model, once, and write the results."""
        self.accelerator.wait_for_everyone()
        best_file = self.position.best_file
        assert best_file is not None
        self.evaluated.load_state_dict(self.checkpoints.load_best(best_file))
        rank, world_size = self.accelerator.process_index, self.accelerator.num_processes
        loader = evaluation_loader(self.data.test, self.recipe, rank=rank, world_size=world_size)
        metrics = evaluate(self.evaluated, loader, self.accelerator, channels_last=self.recipe.channels_last)
        results = {
            "test": {"error": metrics.error, **asdict(metrics)},
            "best_epoch": self.position.best_epoch,
            "epochs": self.num_epochs,
            "chosen_on": "validation" if self.data.held_out else "nothing: the last epoch",
            "weights": "model" if self.ema is None else "average (EMA)",
            "data": self.data.fingerprint,
            "parameters": sum(p.numel() for p in self.plain.parameters()),
            "class_names": None if self.data.class_names is None else list(self.data.class_names),
        }
        if self.accelerator.is_main_process:
            self.folder.copy_in(self.checkpoints.folder / best_file, "model.safetensors")
            self.folder.write_summary(self.position.rows)
            self._draw()
            self.folder.write_results(results)
        self.accelerator.log({"test_error": metrics.error, "test_loss": metrics.loss}, step=self.num_epochs)
        self.accelerator.wait_for_everyone()
        return results

    # Checkpoints

    def _save(self) -> None:
        """Write a checkpoint; all processes come here together, the first one writes."""
        sums = self.accelerator.gather(self._sums[None]).cpu()
        if not self.accelerator.is_main_process:
            return
        scaler = self.accelerator.scaler
        state = {
            "position": asdict(self.position),
            "sums": sums,
            "optimizer": self.optimizer.state_dict(),
            "mixer": self.mixer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "recipe": self.recipe.to_dict(),
            "data": self.data.fingerprint,
            "num_processes": self.accelerator.num_processes,
        }
        self.checkpoints.save(
            self.position.total,
            model=self.plain.state_dict(),
            ema=None if self.ema is None else self.ema.module.state_dict(),
            state=state,
            best=self.position.best_file,
        )

    def restore(self, checkpoint: Checkpoint) -> list[str]:
        """Go on from a checkpoint; return what the user should know about it."""
        state = checkpoint.state
        remarks = []
        self.plain.load_state_dict(checkpoint.model)
        if self.ema is not None and checkpoint.ema is not None:
            self.ema.module.load_state_dict(checkpoint.ema)
        self.optimizer.load_state_dict(state["optimizer"])
        self.mixer.load_state_dict(state["mixer"])
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.position = replace(Position(), **state["position"])
        sums, rank = state["sums"].to(self._sums), self.accelerator.process_index
        if len(sums) == self.accelerator.num_processes:
            self._sums.copy_(sums[rank])
        else:
            self._sums.copy_(sums.sum(dim=0) if rank == 0 else torch.zeros_like(self._sums))
            remarks.append(
                f"the checkpoint is of {len(sums)} processes, now there are {self.accelerator.num_processes}: "
                f"the run goes on, but not bit for bit as it would have"
            )
        if self.scheduler is not None:
            self.scheduler.step(self.position.epoch)
            self.scheduler.step_update(self.position.total)
        return remarks

    def _newest(self) -> str:
        paths = self.checkpoints.paths()
        return paths[-1].name if paths else "none yet"
