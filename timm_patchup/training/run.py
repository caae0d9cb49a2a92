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

from ..core.outside import require_consent
from ..data.loader import load_data
from ..data.workers import naming_dead_workers
from ..errors import UserError
from ..recipe import Recipe
from ..runs.accelerator import make_accelerator, precision_of_launch, say_once
from ..runs.folder import OWN_FILES, STATES, RunFolder, State
from ..runs.local import LocalPaths, recall
from ..runs.together import all_equal, failing_alone, main_first, naming_lost_processes, together
from .build import batch_problems, describe_batch, model_problems, precision_of
from .infer import ResolvedRecipe, name_after_folder, resolve
from .loop import Trainer
from .resuming import own_recipe, require_same_recipe, restore
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
        allow_imports: whether to import the methods from outside that the run to resume names.
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
    allow_imports: bool = False


def run(recipe: Recipe, options: RunOptions) -> RunFolder:
    """Train a recipe and return the folder of the finished run.

    Raises:
        UserError: the call is wrong; nothing was written.
        Failed, OSError: the run ended early.
    """
    folder, checkpoint_path = _find_folder(options)
    seen = folder.state()
    folder.refuse_unusable()
    resuming = bool(options.resume) and seen in ("unfinished", "finished")
    if resuming:
        local = recall(folder)
        if not options.given:
            recipe = own_recipe(folder, local, options.overrides, allow_imports=options.allow_imports)
        options = replace(options, data_dir=options.data_dir or local.data_dir)
    elif options.overwrite:
        folder.refuse_to_overwrite()
    else:
        folder.refuse_unless_new()
    recipe = _with_precision_of_launch(recipe, folder if resuming else None)
    if resuming and seen == "finished":
        require_same_recipe(folder, name_after_folder(recipe, options.data_dir))
        resolved = ResolvedRecipe(folder.recipe())  # nothing is left to find or to load
    else:
        require_consent(recipe.mix, named_in=folder.path / "recipe.yaml", allowed=False)  # what is allowed is imported
        resolved = resolve(recipe, options.data_dir)
        if resuming:
            require_same_recipe(folder, resolved.recipe)
    accelerator = _make_accelerator(resolved.recipe, folder, options)
    with naming_lost_processes(accelerator):
        if not all_equal(accelerator, STATES.index(seen)):
            raise UserError(f"the processes see different files in {folder.path}: output must be a folder they share")
        if resuming and seen == "finished":
            _report_finished(folder, resolved.recipe, accelerator)
        else:
            _train(resolved, options, accelerator, _Start(folder, seen, resuming, checkpoint_path))
    return folder


@dataclass(frozen=True)
class _Start:
    """What was found in the folder of a run before anything was written, and whether it is resumed, and where."""

    folder: RunFolder
    seen: State
    resuming: bool
    checkpoint: Path | None


def _train(resolved: ResolvedRecipe, options: RunOptions, accelerator: Accelerator, start: _Start) -> None:
    recipe, folder = resolved.recipe, start.folder
    data = main_first(accelerator, lambda: load_data(recipe, options.data_dir))
    stop = StopSignal()
    trainer = Trainer(recipe, data, folder, accelerator, stop=stop, pretrained_path=resolved.pretrained_path)
    trainer.learner.mixer.check_images(torch.zeros(2, *recipe.input_size, device=accelerator.device))
    # Nothing was written so far.
    with _locked(accelerator, start, overwrite=options.overwrite) as finished:
        if finished:
            _report_finished(folder, recipe, accelerator)
            return
        if start.resuming:
            restore(trainer, folder, start.checkpoint)
        with together(accelerator):
            if accelerator.is_main_process:
                if not start.resuming:
                    if options.overwrite:
                        folder.clear()
                    folder.begin(recipe, folder.name)
                LocalPaths.of(options.data_dir, resolved.pretrained_path).remember(folder)
        if resolved.note:
            say_once(accelerator, f"inferred: {resolved.note}")
        _print_start(recipe, trainer, accelerator, data.describe())
        _start_trackers(recipe, folder, accelerator, options)
        with stop.listening(), failing_alone(accelerator), naming_dead_workers():
            results = trainer.fit()
        accelerator.end_training()
        _print_table(folder, recipe, results, accelerator)


def _find_folder(options: RunOptions) -> tuple[RunFolder, Path | None]:
    """Return the folder of the run, and the checkpoint if one was named."""
    path = options.resume
    if not isinstance(path, Path):
        return RunFolder(options.output / options.experiment), None
    if not path.is_dir():
        raise UserError(f"resume {path}: no such run or checkpoint; give OUTPUT/EXPERIMENT or its checkpoints/step-N")
    if (path / "manifest.json").is_file():
        return RunFolder(path.parent.parent), path
    if RunFolder(path).state() in ("new", "foreign"):
        raise UserError(f"resume {path}: the folder has no run (no recipe.yaml); give OUTPUT/EXPERIMENT")
    return RunFolder(path), None


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


def _with_precision_of_launch(recipe: Recipe, resumed: RunFolder | None) -> Recipe:
    """Return the recipe with the precision of ``accelerate launch``, so that it is recorded and can be resumed with.

    Raises:
        UserError: the run to resume was started without mixed precision.
    """
    dtypes: dict[str, Literal["bfloat16", "float16"]] = {"bf16": "bfloat16", "fp16": "float16"}
    launched = dtypes.get(precision_of_launch())
    if recipe.amp or launched is None:
        return recipe
    if resumed is not None and not resumed.recipe().amp:
        raise UserError(
            f"{resumed.path} was started in float32, this launch asks for {launched}: "
            f"launch without mixed precision, or start a new run (--experiment NAME)"
        )
    return replace(recipe, amp=True, amp_dtype=launched)


@contextmanager
def _locked(accelerator: Accelerator, start: _Start, *, overwrite: bool) -> Iterator[bool]:
    """Lock the folder on the main process, and look again: another process may have been at work since the first look.

    Yields:
        Whether the run to resume was finished meanwhile.

    Raises:
        UserError: in all processes, if the folder is locked or has something that would be overwritten.
    """
    folder = start.folder
    with ExitStack() as lock:
        finished = False
        with together(accelerator):
            if accelerator.is_main_process:
                lock.enter_context(folder.locked())
                state = folder.state()
                finished = start.resuming and state == "finished"
                if not start.resuming and not overwrite:
                    folder.refuse_unless_new()
                elif not start.resuming and state == "finished" != start.seen:
                    raise UserError(
                        f"{folder.path}: another process finished a run there in the meantime: "
                        f"run the command again to overwrite it"
                    )
        yield broadcast_object_list([finished])[0]


def _print_start(recipe: Recipe, trainer: Trainer, accelerator: Accelerator, data: str) -> None:
    parameters = sum(p.numel() for p in trainer.learner.unwrapped_model.parameters())
    model = f"{recipe.model}, {parameters:,} parameters"
    batch = describe_batch(recipe, accelerator.num_processes)
    precision = "float32" if accelerator.mixed_precision == "no" else accelerator.mixed_precision
    device = f"{accelerator.device.type}, precision {precision}"
    say_once(
        accelerator,
        f"{trainer.folder.path}: {model}, on {recipe.dataset}: {data}",
        f"method: {trainer.learner.mixer}",
        f"{batch}, {trainer.batches.updates} updates per epoch; {device}",
    )


def _start_trackers(recipe: Recipe, folder: RunFolder, accelerator: Accelerator, options: RunOptions) -> None:
    if not options.track:
        return
    flat = {
        name: value if isinstance(value, (int, float, str, bool)) else str(value)
        for name, value in recipe.to_dict().items()
    }
    accelerator.init_trackers("timm_patchup", config=flat, init_kwargs={"wandb": {"name": folder.name}})


def _report_finished(folder: RunFolder, recipe: Recipe, accelerator: Accelerator) -> None:
    say_once(accelerator, f"{folder.path} is already finished")
    _print_table(folder, recipe, folder.results(), accelerator)
    accelerator.wait_for_everyone()  # the first process serves the others
    accelerator.end_training()


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
    ]
    median = results.get("median")
    if median is not None:
        lines.append(
            f"median of the last {len(median['epochs'])} epochs, all tested and none chosen: "
            f"error {median['error']:.2f}, NLL {median['loss']:.4f}"
        )
    lines.append(f"{folder.path}/: {', '.join(name for name in OWN_FILES if (folder.path / name).is_file())}")
    say_once(accelerator, *lines)
