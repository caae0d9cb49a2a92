"""One evaluation from its call to its report: load the models, open the data, measure what is missing, write.

``evaluate.py`` and ``timm_patchup.hub.evaluate`` both make an ``EvalCall`` and call ``run``.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ..data.fetch import fetch_splits
from ..data.source import HUB_PREFIX
from ..data.workers import naming_dead_workers
from ..errors import HubError, UserError
from ..recipe.data_names import find_data_spec, load_data_spec
from ..recipe.parts import DataSpec, ImageSpec
from ..runs.accelerator import make_accelerator
from ..runs.folder import RunFolder
from ..runs.load import FOLDER
from ..runs.local import recall
from ..runs.together import failing_alone, main_first, naming_lost_processes, together
from ..system.files import make_folder
from ..system.locks import LOCK, locked
from ..system.output import say
from .context import EvalContext
from .images import TestImages, load_images, shared_spec
from .models import EvalModel, load_models
from .report import write_report
from .results import Results
from .suite import Suite
from .suites import SUITES, option_values, suite_problems

Values = dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class EvalCall:
    """What to evaluate.

    Attributes:
        models: run folders, ``hf-hub:USER/NAME``, ``local-dir:DIR`` or names of timm.
        suites: names of suites.
        data: a dataset, benchmark or recipe to test on; None for the one the models were trained on.
        data_dir: a local folder with the data; None for the Hub.
        limit: number of test samples; None for all.
        batch_size: images per batch of a process.
        output: folder of the report.
        force: measure again what results.json already contains.
        seed: seed of all random choices.
        threads: CPU threads per process; None for the process's share of the cores.
        options: values of the suites' options; those left out have their defaults.
    """

    models: tuple[str, ...]
    suites: tuple[str, ...]
    data: str | None = None
    data_dir: str | Path | None = None
    limit: int | None = None
    batch_size: int = 100
    output: Path
    force: bool = False
    seed: int = 0
    threads: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def _print(text: str) -> None:
    say(*text.split("\n"))


def run(call: EvalCall, *, show: Callable[[str], None] = _print) -> dict[str, dict[str, Values]]:
    """Evaluate, and write the report.

    Args:
        call: what to evaluate.
        show: receives the progress and the tables, on the main process.

    Returns:
        The values per suite and model of this call; the report may include earlier ones.

    Raises:
        UserError: the call is wrong; nothing has been written.
    """
    options = option_values(call.options)
    if problems := suite_problems(call.suites, options):
        raise UserError(problems)
    suites = [SUITES[name] for name in call.suites]
    named = None if call.data is None else find_data(call.data, ())  # before a download that may take long
    accelerator = make_accelerator(threads=call.threads)
    with naming_lost_processes(accelerator):
        return _run(call, suites, options, named, accelerator, show)


def _run(
    call: EvalCall,
    suites: Sequence[Suite],
    options: Mapping[str, Any],
    named: DataSpec | None,
    accelerator: Accelerator,
    show: Callable[[str], None],
) -> dict[str, dict[str, Values]]:
    models = load_models(call.models)
    data = named or find_data(None, models, is_local=call.data_dir is not None)
    _require_same_classes(models, data)
    images = main_first(accelerator, lambda: _open_images(models, data, call))
    for model in models:
        images[model.name].require_order(model.label_names or (), model.name)
    first = images[models[0].name]
    header = data.test_keys() | {"samples": len(first), "fingerprint": first.fingerprint()}
    stored = Results(call.output, header, force=call.force)
    contexts = [EvalContext(model, images[model.name], accelerator, call.seed, options) for model in models]
    _refuse_unusable(suites, contexts, list(dict.fromkeys([*stored.models, *(model.name for model in models)])))
    with _locked(call.output, accelerator):
        results = Results(call.output, header, force=call.force)  # another evaluation may have added to it
        accelerator.wait_for_everyone()  # every process has read results.json before it is written
        with failing_alone(accelerator):
            for suite in suites:
                for context in contexts:
                    _measure(suite, context, results, show, force=call.force)
        with together(accelerator):
            if accelerator.is_main_process:
                lines = write_report(results, options)
                results.write()
                show("\n" + "\n\n".join(lines) + f"\n\n{call.output / 'report.html'}")
    return {name: {model.name: results.suites[name][model.name]["values"] for model in models} for name in call.suites}


@contextmanager
def _locked(output: Path, accelerator: Accelerator) -> Iterator[None]:
    """Hold the lock of a report on the main process; a second evaluation waits, so that no row is lost."""
    with ExitStack() as lock:
        with together(accelerator):
            if accelerator.is_main_process:
                make_folder(output)
                waiting = f"another evaluation is writing to {output}: waiting for it"
                lock.enter_context(locked(output / LOCK, busy=waiting, waiting=lambda: say(waiting, stream=sys.stderr)))
        yield


def find_data(name: str | None, models: Sequence[EvalModel], *, is_local: bool = False) -> DataSpec:
    """Return the data to test on: named data, or the data that the models were trained on.

    Args:
        name: a dataset, benchmark or recipe, None for the data of the models.
        models: the classifiers.
        is_local: whether the images are in a folder that the caller gave, so that no recipe can name others.

    Raises:
        UserError: the name is unknown, or the models do not determine the data.
    """
    if name is not None:
        try:
            return load_data_spec(name)
        except UserError as error:
            raise UserError([f"data: {problem}" for problem in error.problems]) from error
    known = [(model, trained_on) for model in models if (trained_on := _trained_on(model, is_local)) is not None]
    if not known:
        raise UserError(f"{models[0].name} has no recipe that names its data: choose it with data (--data NAME)")
    first, data = known[0]
    for model, other in known[1:]:
        differing = [key for key, value in other.test_keys().items() if value != data.test_keys()[key]]
        if differing:
            raise UserError(
                f"{first.name} and {model.name} differ in {', '.join(differing)}: choose the data (--data NAME)"
            )
    return data


def _trained_on(model: EvalModel, is_local: bool) -> DataSpec | None:
    """Return the data of a model's recipe. A recipe that came with the weights may only name one of our datasets."""
    if model.recipe is None:
        return None
    if model.is_run or is_local:
        return DataSpec.of(model.recipe)
    data = find_data_spec(model.recipe.dataset)
    if data is None:
        dataset = model.recipe.dataset
        raise UserError(
            f"{model.name} was trained on {dataset}, which is not a benchmark: choose the data "
            f"(--data NAME), or give the folder of its images (--data-dir)"
        )
    return data


def _require_same_classes(models: Sequence[EvalModel], data: DataSpec) -> None:
    problems = [
        f"model {model.name} has {model.num_classes} classes, but {data.dataset} has {data.num_classes}"
        for model in models
        if model.num_classes != data.num_classes
    ]
    if problems:
        raise UserError(problems)


def _open_images(models: Sequence[EvalModel], data: DataSpec, call: EvalCall) -> dict[str, TestImages]:
    """Open the test images per model; models that expect the same size and crop share them."""
    data_dir = call.data_dir or _remembered(models, data) or _fetch_test_split(data)
    opened: dict[ImageSpec, TestImages] = {}
    for spec in {shared_spec(model.images): None for model in models}:
        opened[spec] = load_images(data, spec, data_dir=data_dir, limit=call.limit, batch_size=call.batch_size)
    return {model.name: opened[shared_spec(model.images)] for model in models}


def _remembered(models: Sequence[EvalModel], data: DataSpec) -> Path | None:
    """Return the folder that a run was trained on, None if its data is not local or is not what is tested."""
    for model in models:
        if model.is_run and model.recipe is not None and model.recipe.dataset == data.dataset:
            folder = recall(RunFolder(Path(model.source.removeprefix(FOLDER)))).data_dir
            if folder is not None:
                return Path(folder)
    return None


def _fetch_test_split(data: DataSpec) -> Path | None:
    """Return a folder with the test images only, None if ``datasets`` has to open the data."""
    if not data.dataset.startswith(HUB_PREFIX):
        return None
    try:
        return fetch_splits(data, [data.val_split])
    except HubError:  # another layout, or only in the cache of ``datasets``, which then reports the problem
        return None


def _refuse_unusable(suites: Sequence[Suite], contexts: Sequence[EvalContext], models: Sequence[str]) -> None:
    """Refuse options, models and images that a suite cannot use, before anything is measured."""
    for suite in suites:
        if suite.check_options is not None:
            suite.check_options(contexts[0].options, models)
    for suite in suites:
        for context in contexts:
            if suite.check is not None:
                suite.check(context)


def _measure(suite: Suite, context: EvalContext, results: Results, show: Callable[[str], None], *, force: bool) -> None:
    model = context.model
    settings = _preprocessing(model.images) | suite.settings(context)
    cached = not force and results.has(suite.name, model, seed=context.seed, settings=settings)
    if context.accelerator.is_main_process:
        show(f"{suite.name:12} {model.name}{': cached' if cached else ''}")
    if cached:
        return
    model.classifier.to(context.device)
    with naming_dead_workers():
        measured = suite.measure(context)
    model.classifier.cpu()  # only one of several models needs memory on the device
    results.add(suite.name, model, measured, seed=context.seed, settings=settings)
    with together(context.accelerator):
        if context.accelerator.is_main_process:
            results.write()


def _preprocessing(images: ImageSpec) -> dict[str, Any]:
    """Return how a model's images are prepared, as results.json records it."""
    cropped: dict[str, Any] = {"crop": "none, resized whole"}
    if images.is_cropped:
        cropped = {"crop_pct": images.crop_pct, "crop_mode": images.crop_mode}
        cropped |= {"border": "mean"} if images.crop_mode == "border" else {}  # black in earlier releases
    return {key: getattr(images, key) for key in ("input_size", "interpolation", "mean", "std")} | cropped
