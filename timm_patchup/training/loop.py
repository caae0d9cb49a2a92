"""The training loop: epochs of updates, checkpoints between them, and the test of the best model.

The path of a batch: ``data/loader.py`` loads it, ``Learner.update`` mixes it and makes a step, ``_end_epoch`` validates
and saves.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Any, cast

import torch
from accelerate import Accelerator

from ..data.batches import EvaluationBatches
from ..data.loader import Data, ImageLoader, evaluation_loader, training_loader
from ..errors import CheckpointError, NonFinite, NoResult, Stopped
from ..recipe import Recipe
from ..report.confusion import plot_confusion
from ..report.curves import plot_curves
from ..report.figures import save
from ..runs.checkpoint import Checkpoint, Checkpoints
from ..runs.confusion import MAX_CLASSES, Confusion
from ..runs.folder import EpochRow, RunFolder, median_of
from ..runs.metrics import Metrics, evaluate
from ..runs.together import together
from ..system.signals import holding_back
from .learner import Learner
from .pretrained import class_weights
from .progress import Progress
from .stopping import StopSignal

_CURVES_SECONDS = 60.0


@dataclass
class Position:
    """How far a run is, and the history that its checkpoints keep."""

    epoch: int = 0
    update: int = 0  # updates done in this epoch
    total: int = 0  # updates done in all epochs
    rows: list[EpochRow] = field(default_factory=list)
    best_epoch: int | None = None
    best_value: float | None = None
    best_file: str | None = None


# What a stored position must have.
POSITION: dict[str, type | tuple[type, ...]] = {"epoch": int, "update": int, "total": int, "rows": list}
POSITION |= {"best_epoch": (int, NoneType), "best_value": (float, NoneType), "best_file": (str, NoneType)}


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
        pretrained_path: Path | None = None,
    ) -> None:
        self.recipe, self.data, self.folder, self.accelerator = recipe, data, folder, accelerator
        self.stop = stop or StopSignal()
        self.position = Position()
        self.checkpoints = Checkpoints(folder.checkpoints, keep=recipe.checkpoint_hist)
        rank, world_size = accelerator.process_index, accelerator.num_processes
        self.loader, self.batches = training_loader(
            data.train, recipe, rank=rank, world_size=world_size, device=accelerator.device
        )
        self.val_loader = evaluation_loader(
            data.val, recipe, rank=rank, world_size=world_size, device=accelerator.device
        )
        self.learner = Learner(
            recipe,
            accelerator,
            updates_per_epoch=self.batches.updates,
            pretrained_path=pretrained_path,
            class_weight=class_weights(recipe.class_weight, data.train.labels, recipe.num_classes),
        )
        self.num_epochs = self.learner.num_epochs
        self.progress = Progress(
            enabled=accelerator.is_main_process,
            num_epochs=self.num_epochs,
            updates=self.batches.updates,
            batch_size=recipe.batch_size,
            interval=recipe.log_interval,
        )
        self._curves_at = time.perf_counter()

    def fit(self) -> dict[str, Any]:
        """Train all epochs, test the best model once and return the results.

        Raises:
            Stopped: a signal, after a checkpoint was written.
            NonFinite: the loss or the weights became infinite or NaN.
        """
        while self.position.epoch < self.num_epochs:
            self._train_epoch()
            self._end_epoch()
            if signal := self._asked_to_stop():
                raise Stopped(signal, self._newest())
        return self._test()

    # One epoch

    def _train_epoch(self) -> None:
        position = self.position
        self.learner.model.train()
        self.batches.begin(position.epoch, position.update)
        self.progress.begin_epoch(position.epoch, position.update)
        batches = self._iterate(self.loader)
        for update in range(position.update, self.batches.updates):
            start = time.perf_counter()
            waited = self.learner.update(batches, position.total, self.batches.divisors(update))
            position.update = update + 1
            position.total += 1
            shown = self.learner.mean_loss() if self.progress.wants_loss(update + 1) else None
            seconds = time.perf_counter() - start
            self.progress.advance(waited=waited, seconds=seconds, update=update + 1, loss=shown)
            if position.update < self.batches.updates:  # after the last update comes the end of the epoch
                self._between_updates()

    def _between_updates(self) -> None:
        """Save every ``checkpoint_steps`` updates, and stop if asked to or if the loss is not finite."""
        every = self.recipe.checkpoint_steps
        due = every > 0 and self.position.total % every == 0
        on_cpu = self.accelerator.device.type == "cpu"
        if not (due or on_cpu or self.position.total % 10 == 0):  # looking waits for the device
            return
        signal = self._asked_to_stop()
        if due or signal:
            self._save()
        if signal:
            raise Stopped(signal, self._newest())

    def _asked_to_stop(self) -> int:
        """Return the signal that asks any process to stop, 0 if none; raise NonFinite if the loss of any is not finite.

        Processes agree on what is returned here. What a handler remembers meanwhile is seen the next time.
        """
        own = torch.tensor([[self.stop.signal, 0]], device=self.accelerator.device)
        own[0, 1] = self.learner.bad_update
        signals, bad = self.accelerator.gather(own).unbind(dim=1)
        first_bad = bad[bad >= 0]
        if len(first_bad):
            raise NonFinite(int(first_bad.min()), self._newest())
        return int(signals.max())

    def _end_epoch(self) -> None:
        position, recipe = self.position, self.recipe
        self._asked_to_stop()  # a loss that is not finite must not reach a checkpoint
        self.learner.sync_batch_norm()
        lr, trained = self.learner.lr, self.learner.pop_epoch()
        number = position.epoch + 1
        last = number == self.num_epochs
        if recipe.val_augment:
            cast(EvaluationBatches, self.val_loader.batches).begin(position.epoch)
        always = number > self.num_epochs - (recipe.test_median or 1)
        metrics = self._evaluate(self.val_loader) if number % recipe.val_interval == 0 or always else None
        row: EpochRow = {
            "epoch": number,
            "lr": lr,
            **trained,
            "val_loss": metrics.loss if metrics else None,
            "val_top1": metrics.top1 if metrics else None,
            "val_top5": metrics.top5 if metrics else None,
            "val_error": metrics.error if metrics else None,
        }
        if metrics is not None and not isfinite(metrics.loss):
            raise NonFinite(position.total, self._newest())
        position.rows.append(row)
        is_best = metrics is not None and self._is_best(metrics)
        if metrics is not None and is_best:
            position.best_epoch, position.best_value = number, self._value(metrics)
            position.best_file = self.checkpoints.best_name(number)
            with self._main_writes() as is_main:
                if is_main:
                    self.checkpoints.save_best(position.best_file, self.learner.evaluated_model.state_dict())
        position.epoch, position.update = number, 0
        if self.learner.scheduler is not None:
            self.learner.scheduler.step(number)
        self._save()
        with self._main_writes() as is_main:
            if is_main:
                self.folder.write_summary(position.rows)
                if is_best and position.best_file:
                    self.folder.copy_in(self.checkpoints.folder / position.best_file, "model.safetensors")
                if last or time.perf_counter() - self._curves_at > _CURVES_SECONDS:
                    self._plot()
        self.accelerator.log({name: value for name, value in row.items() if value is not None}, step=number)
        self.progress.end_epoch(row, best=is_best and self._tests_best_epoch)

    def _evaluate(self, loader: ImageLoader, confusion: Confusion | None = None) -> Metrics:
        return evaluate(
            self.learner.evaluated_model,
            self._iterate(loader),
            self.accelerator,
            channels_last=self.recipe.channels_last,
            observe=None if confusion is None else confusion.observe,
        )

    @staticmethod
    def _iterate(loader: ImageLoader) -> Iterator[Any]:
        with holding_back():  # it may start workers
            return iter(loader)

    def _value(self, metrics: Metrics) -> float:
        return metrics.top1 if self.recipe.eval_metric == "top1" else -metrics.loss

    @property
    def _tests_best_epoch(self) -> bool:
        """Whether the best epoch is tested, and not the last."""
        return self.data.held_out or self.recipe.best_on_test

    def _is_best(self, metrics: Metrics) -> bool:
        """Return whether to keep these weights: those with the best value, or always the last if nothing is chosen."""
        best, value = self.position.best_value, self._value(metrics)
        if best is None or not self._tests_best_epoch:
            return True
        return value > best or (value == best and self.recipe.best_tie == "last")

    def _plot(self) -> None:
        self._curves_at = time.perf_counter()
        save(
            self.folder.path / "curves.png",
            plot_curves,
            self.position.rows,
            title=self.folder.name,
            best_epoch=self.position.best_epoch if self._tests_best_epoch else None,
            val_name="validation" if self.data.held_out else "test",
        )

    # The test

    def _test(self) -> dict[str, Any]:
        """Test the best model once and write the results.

        Raises:
            CheckpointError: the best weights were damaged or removed, and their copy, too.
            NoResult: the test loss is not finite.
        """
        best_file = self.position.best_file
        assert best_file is not None
        with self._main_writes() as is_main:
            if is_main:
                for line in self.checkpoints.repair_best(self.folder.path / "model.safetensors"):
                    self.progress.print_main(f"note: {line}")
        with together(self.accelerator):
            try:
                weights = self.checkpoints.load_best(best_file)
            except CheckpointError as error:
                raise CheckpointError(f"{error}: resume the run (--resume) from an older checkpoint") from error
            self.learner.evaluated_model.load_state_dict(weights)
        rank, world_size = self.accelerator.process_index, self.accelerator.num_processes
        recipe, device = self.recipe, self.accelerator.device
        loader = evaluation_loader(self.data.test, recipe, rank=rank, world_size=world_size, device=device)
        confusion = Confusion(recipe.num_classes, device) if recipe.num_classes <= MAX_CLASSES else None
        metrics = self._evaluate(loader, confusion)
        if not isfinite(metrics.loss):
            raise NoResult(metrics.loss)
        chosen_on = "validation" if self.data.held_out else "nothing: the last epoch"
        results: dict[str, Any] = {
            "test": {"error": metrics.error, **asdict(metrics)},
            "best_epoch": self.position.best_epoch,
            "epochs": self.num_epochs,
            "chosen_on": "the test set" if self.recipe.best_on_test else chosen_on,
            "weights": "model" if self.learner.ema is None else "average (EMA)",
            "weights_sha256": self.checkpoints.best_checksum(best_file),
            "data": self.data.fingerprint,
            "parameters": sum(p.numel() for p in self.learner.unwrapped_model.parameters()),
            "class_names": None if self.data.class_names is None else list(self.data.class_names),
            "confusion": None if confusion is None else confusion.total(self.accelerator),
        }
        if recipe.test_median is not None:
            results["median"] = median_of(self.position.rows, recipe.test_median)
        with self._main_writes() as is_main:
            if is_main:
                self.folder.copy_in(self.checkpoints.folder / best_file, "model.safetensors")
                self.folder.write_summary(self.position.rows)
                self._plot()
                if results["confusion"] is not None:
                    path, classes = self.folder.path / "confusion.png", self.data.class_names
                    save(path, plot_confusion, results["confusion"], classes, title=self.folder.name)
                self.folder.write_results(results)
        self.accelerator.log({"test_error": metrics.error, "test_loss": metrics.loss}, step=self.num_epochs)
        return results

    @contextmanager
    def _main_writes(self) -> Iterator[bool]:
        """Yield whether this process writes the files of the run; if that fails, it fails in all processes."""
        is_main = self.accelerator.is_main_process
        with together(self.accelerator), self.folder.writing() if is_main else nullcontext():
            yield is_main

    # Checkpoints

    def _save(self) -> None:
        """Write a checkpoint; a collective call, in which the main process writes.

        Raises:
            NonFinite: the last update ruined the weights, which no loss has shown yet.
        """
        # Norm statistics differ between processes, so one may see what the others do not.
        finite = torch.tensor([self.learner.is_finite()], device=self.accelerator.device)
        if not self.accelerator.gather(finite).all():
            raise NonFinite(self.position.total, self._newest())
        state = self.learner.state_dict()
        ema = self.learner.ema
        with self._main_writes() as is_main:
            if is_main:
                self.checkpoints.save(
                    self.position.total,
                    model=self.learner.unwrapped_model.state_dict(),
                    ema=None if ema is None else ema.module.state_dict(),
                    state={
                        **state,
                        "position": asdict(self.position),
                        "recipe": self.recipe.to_dict(),
                        "data": self.data.fingerprint,
                        "num_processes": self.accelerator.num_processes,
                    },
                    best=self.position.best_file,
                )

    def restore(self, checkpoint: Checkpoint) -> list[str]:
        """Restore a checkpoint; return notes for the user."""
        self.position = Position(**checkpoint.state["position"])
        self.checkpoints.restored(checkpoint)
        if self.position.best_file is not None:
            self.checkpoints.load_best(self.position.best_file)  # fail now and not after the last epoch
        return self.learner.restore(checkpoint, epochs=self.position.epoch, updates=self.position.total)

    def _newest(self) -> str:
        paths = self.checkpoints.paths()
        return paths[-1].name if paths else "none yet"
