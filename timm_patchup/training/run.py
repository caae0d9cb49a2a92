"""One run from its folder to its table: open or resume the folder, load the data, train, test, report."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

from ..data.loader import load_data
from ..errors import CheckpointError, HubError, RunError, UserError
from ..recipe import Recipe
from ..recipe.compose import DEFAULT
from ..runs.checkpoint import Checkpoint, load_checkpoint
from ..runs.folder import RunFolder
from .build import describe_batch, make_accelerator, model_problems
from .loop import Trainer
from .stopping import StopSignal

if TYPE_CHECKING:
    from ..cli.train import Call


def run(recipe: Recipe, call: "Call") -> dict[str, Any]:
    """Train a recipe as the call says, and return the results.

    Raises:
        UserError, DataError: the call is wrong; nothing was written.
        RunError, OSError: the run ended early.
    """
    folder, checkpoint_path = _find_folder(call)
    resuming = bool(call.resume) and folder.state() in ("unfinished", "finished")
    if resuming:
        recipe = _recipe_of_run(folder, recipe, call)
    elif call.overwrite:
        folder.refuse_to_overwrite()
    else:
        folder.refuse_unless_new()
    problems = model_problems(recipe)
    if problems:
        raise UserError(problems)
    accelerator = make_accelerator(
        recipe, trackers=call.track, log_dir=folder.path / "logs" if call.track else None, threads=call.threads
    )
    recipe = _with_precision_of_launch(recipe, accelerator, folder if resuming else None)
    say = accelerator.print
    if resuming and folder.state() == "finished":
        say(f"{folder.path} is finished already")
        results = folder.results()
        _report(folder, recipe, results, say)
        _share(folder, call, accelerator)
        return results
    with accelerator.main_process_first():  # one download, one cache
        data = load_data(recipe, call.data_dir)
    stop = StopSignal()
    trainer = Trainer(recipe, data, folder, accelerator, stop=stop)
    trainer.learner.mixer.check_images(torch.zeros(2, *recipe.input_size, device=accelerator.device))
    # Nothing was written so far.
    with folder.locked() if accelerator.is_main_process else nullcontext():
        accelerator.wait_for_everyone()
        if resuming:
            _restore(trainer, folder, checkpoint_path, say)
        elif accelerator.is_main_process:
            if call.overwrite:
                folder.clear()
            folder.begin(recipe, folder.name)
        accelerator.wait_for_everyone()
        _introduce(recipe, trainer, accelerator, data.describe())
        _start_trackers(recipe, folder, accelerator, call)
        with stop.listening():
            results = trainer.fit()
        accelerator.end_training()
        _report(folder, recipe, results, say)
    _share(folder, call, accelerator)
    return results


def _find_folder(call: "Call") -> tuple[RunFolder, Path | None]:
    """Return the folder of the run, and the checkpoint if one was named."""
    if isinstance(call.resume, str):
        path = Path(call.resume)
        if not path.is_dir():
            raise UserError([f"--resume {call.resume}: no such run or checkpoint"])
        if (path / "manifest.json").is_file():
            return RunFolder(path.parent.parent), path
        if RunFolder(path).state() in ("new", "foreign"):
            raise UserError([f"--resume {call.resume}: no run lies there"])
        return RunFolder(path), None
    return RunFolder(call.output / (call.experiment or _default_experiment(call.source))), None


def _default_experiment(source: str | None) -> str:
    if source is None:
        return DEFAULT
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        return source
    return path.resolve().parent.name if path.name == "recipe.yaml" else path.stem


def _recipe_of_run(folder: RunFolder, recipe: Recipe, call: "Call") -> Recipe:
    """Return the recipe to resume with: the run's own; one that was given must agree with it."""
    own = folder.recipe()
    if call.source is None and not call.overrides:
        return own
    if call.source is None:
        recipe = Recipe.from_dict(own.to_dict() | call.overrides)
    differing = recipe.differences(own)
    if differing:
        mine, theirs = recipe.to_dict(), own.to_dict()
        raise UserError(
            [
                f"{folder.path} was started with {name} {theirs.get(name)!r}, not {mine.get(name)!r}: "
                f"a resumed run keeps its recipe"
                for name in differing
            ]
        )
    return recipe


def _with_precision_of_launch(recipe: Recipe, accelerator: Accelerator, resumed: RunFolder | None) -> Recipe:
    """Return the recipe with the precision that ``accelerate launch`` asked for: it belongs to what was used.

    Raises:
        UserError: the run to go on with was started in another one.
    """
    asked = {"bf16": "bfloat16", "fp16": "float16"}.get(accelerator.mixed_precision)
    if recipe.amp or asked is None:
        return recipe
    if resumed is not None:
        raise UserError([f"{resumed.path} was started in float32, this launch asks for {asked}: a run keeps its own"])
    return Recipe.from_dict(recipe.to_dict() | {"amp": True, "amp_dtype": asked})


def _restore(trainer: Trainer, folder: RunFolder, path: Path | None, say: Any) -> None:
    """Go on from the named checkpoint, or from the newest that is sound; from the beginning where there is none."""
    if path is not None:
        checkpoint: Checkpoint | None = load_checkpoint(path)
    else:
        checkpoint, damaged = trainer.checkpoints.newest()
        for line in damaged:
            say(f"note: {line}; taking the one before it")
    if checkpoint is not None:
        if Recipe.from_dict(checkpoint.state["recipe"]).differences(trainer.recipe):
            raise CheckpointError(f"{checkpoint.path.name} is of another recipe than {folder.path}/recipe.yaml")
        if checkpoint.state["data"] != trainer.data.fingerprint:
            raise UserError(["the data is not that of the run to resume: give the --data-dir it was started with"])
    trainer.accelerator.wait_for_everyone()  # all have read what is about to be moved
    if trainer.accelerator.is_main_process:
        trainer.checkpoints.set_aside_after(checkpoint.path if checkpoint else None)
    if checkpoint is None:
        say("no checkpoint to resume from: starting at the beginning")
        return
    for remark in trainer.restore(checkpoint):
        say(f"note: {remark}")
    position = trainer.position
    say(f"resumed from {checkpoint.path.name}: epoch {position.epoch + 1}, update {position.update}")


def _introduce(recipe: Recipe, trainer: Trainer, accelerator: Accelerator, data: str) -> None:
    say = accelerator.print
    parameters = sum(p.numel() for p in trainer.learner.plain.parameters())
    say(f"{trainer.folder.path}: {recipe.model}, {parameters:,} parameters, on {recipe.dataset}: {data}")
    say(f"method: {trainer.learner.mixer}")
    precision = accelerator.mixed_precision
    where = f"{accelerator.device.type}, precision {'float32' if precision == 'no' else precision}"
    say(f"{describe_batch(recipe, accelerator.num_processes)}, {trainer.batches.updates} updates an epoch; {where}")


def _start_trackers(recipe: Recipe, folder: RunFolder, accelerator: Accelerator, call: "Call") -> None:
    if not call.track:
        return
    flat = {
        name: value if isinstance(value, (int, float, str, bool)) else str(value)
        for name, value in recipe.to_dict().items()
    }
    accelerator.init_trackers("timm_patchup", config=flat, init_kwargs={"wandb": {"name": folder.name}})


def _report(folder: RunFolder, recipe: Recipe, results: dict[str, Any], say: Any) -> None:
    """Print the table of a finished run."""
    test = results["test"]
    chosen = "best on validation" if results["chosen_on"] == "validation" else "the last"
    say("")
    say(f"| {'run':30} | method        | test error | top-1 | top-5 |    NLL | images |")
    say(f"| {'-' * 30} | ------------- | ---------- | ----- | ----- | ------ | ------ |")
    say(
        f"| {folder.name:30} | {recipe.mix:13} | {test['error']:10.2f} | {test['top1']:5.2f} | {test['top5']:5.2f} | "
        f"{test['loss']:6.4f} | {test['count']:6} |"
    )
    say(f"epoch {results['best_epoch']} of {results['epochs']} ({chosen}), {results['weights']} weights")
    say(f"{folder.path}/: model.safetensors, recipe.yaml, summary.csv, curves.png, results.json")


def _share(folder: RunFolder, call: "Call", accelerator: Accelerator) -> None:
    """Push a finished run to the Hub where that was asked for; a failure leaves the run as it is."""
    if call.push_to_hub is None or not accelerator.is_main_process:
        return
    from ..cli.push import EXPORT
    from ..hub import export, push

    try:
        accelerator.print(push(export(folder.path, folder.path / EXPORT), call.push_to_hub))
    except (HubError, OSError) as error:
        later = f"python -m timm_patchup.hub {folder.path} --repo {call.push_to_hub}"
        raise RunError(f"the run is finished, but not on the Hub: {error}. Later: {later}") from error
