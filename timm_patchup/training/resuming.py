"""What it takes to resume a run: its own recipe, the refusal of another one, and the newest intact checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

from ..core.outside import import_methods
from ..errors import CheckpointError, UserError, brief, one_line
from ..recipe import Recipe
from ..recipe.layers import override, stored_recipe
from ..runs.accelerator import say_once
from ..runs.checkpoint import Checkpoint, load_checkpoint
from ..runs.folder import COLUMNS, RunFolder
from ..runs.local import LocalPaths
from ..runs.together import all_equal, together
from ..system.checked import check_keys
from .loop import POSITION, Trainer


def own_recipe(
    folder: RunFolder, local: LocalPaths, overrides: Mapping[str, Any], *, allow_imports: bool = False
) -> Recipe:
    """Return the recipe of a run to resume, with the paths that it remembers and the keys that were given.

    A method from outside is imported if it was given, or is allowed.
    """
    own = folder.recipe()
    if allow_imports:
        import_methods(own.mix)
        own = folder.recipe()
    if (mix := overrides.get("mix", own.mix)) != own.mix:  # its settings would not fit the run's method
        raise UserError(_other_than(folder, "mix", own.mix, mix))
    if own.pretrained_path is not None and local.pretrained_path is not None:
        own = replace(own, pretrained_path=local.pretrained_path)
    return Recipe.from_dict(override(own.to_dict(), dict(overrides))) if overrides else own


def require_same_recipe(folder: RunFolder, recipe: Recipe) -> None:
    """Raise UserError unless a resolved recipe agrees with the recipe of the run."""
    differences = recipe.differences(folder.recipe())
    if differences:
        raise UserError([_other_than(folder, name, own, given) for name, (given, own) in differences.items()])


def _other_than(folder: RunFolder, name: str, own: Any, given: Any) -> str:
    return (
        f"{folder.path} was started with {name} {brief(own)}, got {brief(given)}: "
        f"leave it out to resume, or start a new run (--experiment NAME)"
    )


def restore(trainer: Trainer, folder: RunFolder, path: Path | None) -> None:
    """Restore the named checkpoint, or the newest intact one; without any, start at the beginning."""
    accelerator = trainer.accelerator
    with together(accelerator):
        if accelerator.is_main_process:
            for line in trainer.checkpoints.repair_best(folder.path / "model.safetensors"):
                say_once(accelerator, f"note: {line}")
    checkpoint: Checkpoint | None = None
    with together(accelerator):  # all have read what is about to be moved
        checkpoint = _read_checkpoint(trainer, folder, path)
    if not all_equal(accelerator, -1 if checkpoint is None else checkpoint.state["position"]["total"]):
        raise CheckpointError(
            f"the processes read different checkpoints of {folder.path}: it must be on a file system that all of them "
            f"share; if it is, repeat the call"
        )
    with together(accelerator):
        if accelerator.is_main_process:
            trainer.checkpoints.set_aside_after(checkpoint.path if checkpoint else None)
    if checkpoint is None:
        say_once(accelerator, "no checkpoint to resume from: starting at the beginning")
        return
    with together(accelerator):
        notes = _restore(trainer, checkpoint)
    for note in notes:
        say_once(accelerator, f"note: {note}")
    position = trainer.position
    say_once(accelerator, f"resumed from {checkpoint.path.name}: epoch {position.epoch + 1}, update {position.update}")


def _read_checkpoint(trainer: Trainer, folder: RunFolder, path: Path | None) -> Checkpoint | None:
    """Return the named checkpoint, or the newest intact one, None if there is none.

    Raises:
        CheckpointError: it is damaged, not of a run, or has another recipe than the run.
        UserError: it was trained on other data.
    """
    if path is not None:
        checkpoint: Checkpoint | None = load_checkpoint(path)
    else:
        checkpoint, damaged = trainer.checkpoints.newest()
        for line in damaged:
            say_once(trainer.accelerator, f"note: {line}; using the one before it")
    if checkpoint is not None:
        _require_run_state(checkpoint)
        if stored_recipe(checkpoint.state["recipe"]).differences(trainer.recipe):
            raise CheckpointError(f"{checkpoint.path.name} has another recipe than {folder.path}/recipe.yaml")
        if checkpoint.state["data"] != trainer.data.fingerprint:
            raise UserError("this is not the data of the run: give the data_dir (--data-dir) it was started with")
    return checkpoint


def _require_run_state(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError unless a checkpoint has what a run writes: one from elsewhere may have anything."""
    try:
        check_keys(checkpoint.state, {"position": dict, "recipe": dict, "data": str}, where="state.pt")
        position = check_keys(checkpoint.state["position"], POSITION, where="state.pt: position")
        for row in position["rows"]:
            check_keys(row, dict.fromkeys(COLUMNS[:3], float), where="state.pt: rows")
            check_keys(row, dict.fromkeys(row, (float, NoneType)), where="state.pt: rows")
        if min(position["epoch"], position["update"], position["total"]) < 0:
            raise UserError("state.pt: its position is negative")
        if len(position) > len(POSITION) or position["best_file"] != checkpoint.best:
            raise UserError("state.pt: its position differs from the manifest's")
    except UserError as error:
        raise CheckpointError(f"{checkpoint.path.name} is damaged: {error}") from error


def _restore(trainer: Trainer, checkpoint: Checkpoint) -> list[str]:
    try:
        return trainer.restore(checkpoint)
    except UserError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:  # of torch, for other tensors
        reason = f"{type(error).__name__}: {one_line(error, 160)}"
        raise CheckpointError(f"{checkpoint.path.name} does not fit the run: {reason}") from error
