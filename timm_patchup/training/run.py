"""One run from start to end: open or resume its folder, load the data, train, test, print the table.

Everything that can be refused is refused before the first file is written.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from os import environ
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from ..data.loader import load_data
from ..data.workers import naming_dead_workers
from ..errors import CheckpointError, NonFinite, OtherProcessFailed, Stopped, UserError
from ..recipe import Recipe
from ..recipe.override import override
from ..recipe.stored import stored_recipe
from ..runs.accelerator import make_accelerator
from ..runs.checkpoint import Checkpoint, load_checkpoint
from ..runs.folder import OWN_FILES, RunFolder, State
from ..runs.local import LocalPaths, recall
from ..runs.together import is_lost_process, main_first, together
from .build import batch_problems, describe_batch, model_problems, precision_of
from .infer import Resolved, name_after_folder, resolve
from .loop import Trainer
from .stopping import StopSignal


@dataclass(frozen=True)
class RunOptions:
    """How to run a recipe.

    Attributes:
        output: the folder of all runs.
        experiment: the name of the run, a folder in ``output``.
        data_dir: folder of local data, None for the Hub.
        resume: whether to resume the run if there is one, or the path of a run or checkpoint.
        overwrite: start again if there is a run.
        track: names of Accelerate's trackers.
        threads: CPU threads per process, None for its share of the cores.
        given: whether a recipe was named; without one, a resumed run takes its own.
        overrides: keys of the recipe that were given.
    """

    output: Path
    experiment: str
    data_dir: str | None = None
    resume: Path | bool = False
    overwrite: bool = False
    track: tuple[str, ...] = ()
    threads: int | None = None
    given: bool = True
    overrides: dict[str, Any] = field(default_factory=dict)


def run(recipe: Recipe, options: RunOptions) -> RunFolder:
    """Train a recipe and return the folder of the finished run.

    Raises:
        UserError: the call is wrong; nothing was written.
        Failed, OSError: the run ended early.
    """
    folder, checkpoint_path = _find_folder(options)
    seen = folder.state()
    resuming = bool(options.resume) and seen in ("unfinished", "finished")
    if resuming:
        local = recall(folder)
        recipe = _recipe_to_resume(folder, recipe, options, local)
        options = replace(options, data_dir=options.data_dir or local.data_dir)
    elif options.overwrite:
        folder.refuse_to_overwrite()
    else:
        folder.refuse_unless_new()
    if resuming and seen == "finished":
        _check_same(folder, name_after_folder(recipe, options.data_dir))
        resolved = Resolved(folder.recipe())  # nothing is left to find or to load
    else:
        resolved = resolve(recipe, options.data_dir)
        if resuming:
            _check_same(folder, resolved.recipe)
    recipe = resolved.recipe
    accelerator = _make_accelerator(recipe, folder, options)
    recipe = _with_precision_of_launch(recipe, accelerator, folder if resuming else None)
    if resuming and seen == "finished":
        return _report_finished(folder, recipe, accelerator)
    data = main_first(accelerator, lambda: load_data(recipe, options.data_dir))
    stop = StopSignal()
    trainer = Trainer(recipe, data, folder, accelerator, stop=stop, pretrained_path=resolved.pretrained_path)
    trainer.learner.mixer.check_images(torch.zeros(2, *recipe.input_size, device=accelerator.device))
    # Nothing was written so far.
    with _locked(folder, accelerator, resuming=resuming, overwrite=options.overwrite, seen=seen) as finished:
        if finished:
            return _report_finished(folder, recipe, accelerator)
        if resuming:
            _restore(trainer, folder, checkpoint_path)
        with together(accelerator):
            if accelerator.is_main_process:
                if not resuming:
                    if options.overwrite:
                        folder.clear()
                    folder.begin(recipe, folder.name)
                LocalPaths.of(options.data_dir, resolved.pretrained_path).remember(folder)
        if resolved.note:
            accelerator.print(f"inferred: {resolved.note}")
        _print_start(recipe, trainer, accelerator, data.describe())
        _start_trackers(recipe, folder, accelerator, options)
        with stop.listening(), _named_failures(accelerator), naming_dead_workers():
            results = trainer.fit()
        accelerator.end_training()
        _print_table(folder, recipe, results, accelerator)
    return folder


@contextmanager
def _named_failures(accelerator: Accelerator) -> Iterator[None]:
    """Say which process failed, if one of several did."""
    try:
        yield
    except (Stopped, NonFinite, OtherProcessFailed):  # agreed on by all processes
        raise
    except UserError as error:
        error.one_process = accelerator.num_processes > 1
        raise
    except RuntimeError as error:
        if accelerator.num_processes > 1 and is_lost_process(error):
            raise OtherProcessFailed from error
        raise


def _find_folder(options: RunOptions) -> tuple[RunFolder, Path | None]:
    """Return the folder of the run, and the checkpoint if one was named."""
    path = options.resume
    if not isinstance(path, Path):
        return RunFolder(options.output / options.experiment), None
    if not path.is_dir():
        raise UserError(f"resume {path}: no such run or checkpoint")
    if (path / "manifest.json").is_file():
        return RunFolder(path.parent.parent), path
    if RunFolder(path).state() in ("new", "foreign"):
        raise UserError(f"resume {path}: the folder has no run")
    return RunFolder(path), None


def _recipe_to_resume(folder: RunFolder, recipe: Recipe, options: RunOptions, local: LocalPaths) -> Recipe:
    """Return the recipe to resume with: the given one, or the run's own with the paths that it remembers."""
    own = folder.recipe()
    if options.given:
        return recipe
    if (mix := options.overrides.get("mix", own.mix)) != own.mix:  # its settings would not fit the run's method
        raise UserError(_other_than(folder, "mix", own.mix, mix))
    if own.pretrained_path is not None and local.pretrained_path is not None:
        own = replace(own, pretrained_path=local.pretrained_path)
    return Recipe.from_dict(override(own.to_dict(), options.overrides)) if options.overrides else own


def _check_same(folder: RunFolder, recipe: Recipe) -> None:
    """Raise UserError unless a resolved recipe agrees with that of the run."""
    differences = recipe.differences(folder.recipe())
    if differences:
        raise UserError([_other_than(folder, name, own, given) for name, (given, own) in differences.items()])


def _other_than(folder: RunFolder, name: str, own: Any, given: Any) -> str:
    return f"{folder.path} was started with {name} {own!r}, got {given!r}: a resumed run keeps its recipe"


def _make_accelerator(recipe: Recipe, folder: RunFolder, options: RunOptions) -> Accelerator:
    """Make the accelerator; raise UserError with all that is wrong with recipe and launch."""
    problems = model_problems(recipe) + batch_problems(recipe, int(environ.get("WORLD_SIZE", 1)))
    try:
        accelerator = make_accelerator(
            precision=precision_of(recipe),
            trackers=options.track,
            log_dir=folder.path / "logs" if options.track else None,
            threads=options.threads,
        )
    except UserError as error:
        raise UserError([*problems, *error.problems]) from error
    if problems:
        raise UserError(problems)
    return accelerator


def _with_precision_of_launch(recipe: Recipe, accelerator: Accelerator, resumed: RunFolder | None) -> Recipe:
    """Return the recipe with the precision of ``accelerate launch``, so that it is recorded.

    Raises:
        UserError: the run to resume was started in another one.
    """
    dtypes: dict[str, Literal["bfloat16", "float16"]] = {"bf16": "bfloat16", "fp16": "float16"}
    launched = dtypes.get(accelerator.mixed_precision)
    if recipe.amp or launched is None:
        return recipe
    if resumed is not None:
        raise UserError(
            f"{resumed.path} was started in float32, this launch asks for {launched}: a resumed run keeps its precision"
        )
    return replace(recipe, amp=True, amp_dtype=launched)


@contextmanager
def _locked(
    folder: RunFolder, accelerator: Accelerator, *, resuming: bool, overwrite: bool, seen: State
) -> Iterator[bool]:
    """Lock the folder on the main process, and look again: another process may have been at work since the first look.

    Yields:
        Whether the run to resume was finished meanwhile.

    Raises:
        UserError: in all processes, if the folder is locked or has something that would be overwritten.
    """
    with ExitStack() as lock:
        finished = False
        with together(accelerator):
            if accelerator.is_main_process:
                lock.enter_context(folder.locked())
                state = folder.state()
                finished = resuming and state == "finished"
                if not resuming and not overwrite:
                    folder.refuse_unless_new()
                elif not resuming and state == "finished" != seen:
                    raise UserError(
                        f"{folder.path} has a run that was finished meanwhile: give the command again to overwrite it"
                    )
        yield broadcast_object_list([finished])[0]


def _restore(trainer: Trainer, folder: RunFolder, path: Path | None) -> None:
    """Restore the named checkpoint, or the newest intact one; without any, start at the beginning."""
    print_main, accelerator = trainer.accelerator.print, trainer.accelerator
    with together(accelerator):
        if accelerator.is_main_process:
            for line in trainer.checkpoints.repair_best(folder.path / "model.safetensors"):
                print_main(f"note: {line}")
    checkpoint: Checkpoint | None = None
    with together(accelerator):  # all have read what is about to be moved
        checkpoint = _read_checkpoint(trainer, folder, path)
    with together(accelerator):
        if accelerator.is_main_process:
            trainer.checkpoints.set_aside_after(checkpoint.path if checkpoint else None)
    if checkpoint is None:
        print_main("no checkpoint to resume from: starting at the beginning")
        return
    with together(accelerator):
        notes = trainer.restore(checkpoint)
    for note in notes:
        print_main(f"note: {note}")
    position = trainer.position
    print_main(f"resumed from {checkpoint.path.name}: epoch {position.epoch + 1}, update {position.update}")


def _read_checkpoint(trainer: Trainer, folder: RunFolder, path: Path | None) -> Checkpoint | None:
    """Return the named checkpoint, or the newest intact one, None if there is none.

    Raises:
        CheckpointError: it is damaged, or has another recipe than the run.
        UserError: it was trained on other data.
    """
    if path is not None:
        checkpoint: Checkpoint | None = load_checkpoint(path)
    else:
        checkpoint, damaged = trainer.checkpoints.newest()
        for line in damaged:
            trainer.accelerator.print(f"note: {line}; using the one before it")
    if checkpoint is not None:
        if stored_recipe(checkpoint.state["recipe"]).differences(trainer.recipe):
            raise CheckpointError(f"{checkpoint.path.name} has another recipe than {folder.path}/recipe.yaml")
        if checkpoint.state["data"] != trainer.data.fingerprint:
            raise UserError("the data differs from that of the run: give the data_dir (--data-dir) it was started with")
    return checkpoint


def _print_start(recipe: Recipe, trainer: Trainer, accelerator: Accelerator, data: str) -> None:
    parameters = sum(p.numel() for p in trainer.learner.unwrapped_model.parameters())
    accelerator.print(f"{trainer.folder.path}: {recipe.model}, {parameters:,} parameters, on {recipe.dataset}: {data}")
    accelerator.print(f"method: {trainer.learner.mixer}")
    batch = describe_batch(recipe, accelerator.num_processes)
    precision = "float32" if accelerator.mixed_precision == "no" else accelerator.mixed_precision
    device = f"{accelerator.device.type}, precision {precision}"
    accelerator.print(f"{batch}, {trainer.batches.updates} updates per epoch; {device}")


def _start_trackers(recipe: Recipe, folder: RunFolder, accelerator: Accelerator, options: RunOptions) -> None:
    if not options.track:
        return
    flat = {
        name: value if isinstance(value, (int, float, str, bool)) else str(value)
        for name, value in recipe.to_dict().items()
    }
    accelerator.init_trackers("timm_patchup", config=flat, init_kwargs={"wandb": {"name": folder.name}})


def _report_finished(folder: RunFolder, recipe: Recipe, accelerator: Accelerator) -> RunFolder:
    accelerator.print(f"{folder.path} is already finished")
    _print_table(folder, recipe, folder.results(), accelerator)
    accelerator.wait_for_everyone()  # the first process serves the others
    accelerator.end_training()
    return folder


def _print_table(folder: RunFolder, recipe: Recipe, results: dict[str, Any], accelerator: Accelerator) -> None:
    """Print the results of a finished run."""
    test = results["test"]
    chosen_on = results["chosen_on"]
    chosen = "the last" if chosen_on.startswith("nothing") else f"best on {chosen_on}"
    lines = [
        "",
        f"| {'run':30} | method        | test error | top-1 | top-5 |    NLL | images |",
        f"| {'-' * 30} | ------------- | ---------- | ----- | ----- | ------ | ------ |",
        f"| {folder.name:30} | {recipe.mix_name:13} | {test['error']:10.2f} | {test['top1']:5.2f} | "
        f"{test['top5']:5.2f} | {test['loss']:6.4f} | {test['count']:6} |",
        f"epoch {results['best_epoch']} of {results['epochs']} ({chosen}), {results['weights']} weights",
        f"{folder.path}/: {', '.join(name for name in OWN_FILES if (folder.path / name).is_file())}",
    ]
    accelerator.print("\n".join(lines))
