"""One evaluation from its call to its report: load the models, open the data, run what is missing, write."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..data.source import HUB_PREFIX
from ..errors import HubError, UserError
from ..hub.benchmarks import fetch_splits
from ..recipe import Recipe
from ..recipe.data_names import find_data_recipe, load_data_recipe
from ..runs.accelerator import make_accelerator
from .bench import Bench
from .images import TestImages, data_of, load_images
from .report import write_report
from .results import Results
from .subject import Subject, load_subjects
from .suites import SUITES, suite_problems

if TYPE_CHECKING:
    from ..cli.evaluate import Call

Values = dict[str, float | None]
# How a model wants its images: all that is taken from its recipe, which may be a stranger's.
_IMAGE_KEYS = ("input_size", "mean", "std", "crop_pct", "crop_mode", "interpolation", "crop_padding")


def run(call: "Call", *, show: Callable[[str], None] = print) -> dict[str, dict[str, Values]]:
    """Evaluate as the call says, and write the report; ``show`` gets its tables, on the first process.

    Returns:
        The values of each suite and model of the call; the report may hold others, too.

    Raises:
        UserError, DataError, UserError, SiteError: the call is wrong.
    """
    problems = suite_problems(call.suites, ready_files=call.options.corrupted is not None)
    if problems:
        raise UserError(problems)
    accelerator = make_accelerator(threads=call.threads)
    subjects = load_subjects(call.models)
    data = find_data(call.data, subjects)
    _check_classes(subjects, data)
    with accelerator.main_process_first():  # one download, one cache
        images = _images_of(subjects, data, call)
    first = images[subjects[0].name]
    header = data_of(data) | {"samples": len(first), "fingerprint": first.fingerprint()}
    results = Results(call.output, header, force=call.force)
    if call.baseline is not None and call.baseline not in {*results.models, *(subject.name for subject in subjects)}:
        known = [*results.models, *(subject.name for subject in subjects)]
        raise UserError([f"--baseline {call.baseline} is none of the models: {', '.join(dict.fromkeys(known))}"])
    benches = [Bench(subject, images[subject.name], accelerator, call.options) for subject in subjects]
    for name in call.suites:
        for bench in benches:
            if (check := SUITES[name].check) is not None:
                check(bench)
    accelerator.wait_for_everyone()  # all have read what is about to be written
    for name in call.suites:
        for bench in benches:
            _measure(name, bench, results, force=call.force)
    if accelerator.is_main_process:
        lines = write_report(results, baseline=call.baseline)
        results.write()
        show("\n" + "\n\n".join(lines) + f"\n\n{call.output / 'report.html'}")
    accelerator.wait_for_everyone()
    return {
        name: {subject.name: results.suites[name][subject.name]["values"] for subject in subjects}
        for name in call.suites
    }


def find_data(name: str | None, subjects: list[Subject]) -> Recipe:
    """Return a recipe whose data keys say what to test on: of a name, or that of the models' recipes."""
    if name is not None:
        return load_data_recipe(name)
    known = [(subject, _trained_on(subject)) for subject in subjects if subject.has_recipe]
    if not known:
        raise UserError([f"{subjects[0].name} does not say what it was trained on: give --data NAME to test it on"])
    first, data = known[0]
    for subject, other in known[1:]:
        differing = [key for key, value in data_of(other).items() if value != getattr(data, key)]
        if differing:
            raise UserError(
                [f"{first.name} and {subject.name} differ in {', '.join(differing)}: name the data to test on, --data"]
            )
    return data


def _trained_on(subject: Subject) -> Recipe:
    """Return the data of a model's recipe; where the recipe came with the weights, only if it is one of ours."""
    if subject.is_run:
        return subject.recipe
    data = find_data_recipe(subject.recipe.dataset)
    if data is None:
        dataset = subject.recipe.dataset
        raise UserError([f"{subject.name} was trained on {dataset}, which is no benchmark: give --data NAME"])
    return data


def _check_classes(subjects: list[Subject], data: Recipe) -> None:
    problems = [
        f"--model {subject.name} has {subject.num_classes} classes, the data {data.dataset} has {data.num_classes}"
        for subject in subjects
        if subject.num_classes != data.num_classes
    ]
    if problems:
        raise UserError(problems)


def _images_of(subjects: list[Subject], data: Recipe, call: "Call") -> dict[str, TestImages]:
    """Open the test images for each model; models that want them alike share them."""
    data_dir = call.data_dir or _test_split_of(data)
    opened: dict[str, TestImages] = {}
    images: dict[str, TestImages] = {}
    for subject in subjects:
        wanted = {key: getattr(subject.recipe, key) for key in _IMAGE_KEYS}
        kind = str({key: value for key, value in wanted.items() if key not in ("mean", "std")})  # those are the model's
        if kind not in opened:
            recipe = Recipe.from_dict(wanted | data_of(data) | {"workers": data.workers})
            opened[kind] = load_images(recipe, data_dir, limit=call.limit, batch_size=call.batch_size)
        images[subject.name] = opened[kind]
    return images


def _test_split_of(data: Recipe) -> str | None:
    """Return a folder with the test images alone; None where the data must be opened in another way."""
    if not data.dataset.startswith(HUB_PREFIX):
        return None
    try:
        return str(fetch_splits(data, [data.val_split]))
    except HubError:  # stored in another way, or only in the cache of ``datasets``, which tells what is wrong
        return None


def _measure(name: str, bench: Bench, results: Results, *, force: bool) -> None:
    suite, subject, seed = SUITES[name], bench.subject, bench.options.seed
    settings = _preprocessing(subject.recipe) | suite.settings(bench)
    say = bench.accelerator.print
    if not force and results.has(name, subject, seed=seed, settings=settings):
        say(f"{name:12} {subject.name}: there already", flush=True)
        return
    say(f"{name:12} {subject.name}", flush=True)
    subject.classifier.to(bench.device)
    measured = suite.measure(bench)
    subject.classifier.cpu()  # of many models only one needs room on the device
    results.add(name, subject, measured, seed=seed, settings=settings)
    if bench.accelerator.is_main_process:
        results.write()


def _preprocessing(recipe: Recipe) -> dict[str, Any]:
    """Return how a model's images are made."""
    cropped: dict[str, Any] = {"crop": "none, resized whole"}
    if recipe.crop_padding is None:
        cropped = {"crop_pct": recipe.crop_pct, "crop_mode": recipe.crop_mode}
    return {key: getattr(recipe, key) for key in ("input_size", "interpolation", "mean", "std")} | cropped
