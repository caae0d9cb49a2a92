"""One evaluation from its call to its report: load the models, open the data, run what is missing, write."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.loader import fingerprint
from ..recipe import Recipe, RecipeError, load_recipe
from ..recipe.compose import list_benchmarks, list_recipes, nearest, read_keys, recipes_dir
from ..training.build import make_accelerator
from .bench import Bench
from .images import TestImages, data_of, load_images
from .report import write_report
from .results import Results
from .subject import Subject, load_subjects
from .suites import SUITES, suite_problems

if TYPE_CHECKING:
    from .cli import Call

# How a model wants its images; the rest of a recipe says nothing about them.
_IMAGE_KEYS = ("input_size", "crop_pct", "interpolation", "crop_padding")


def run(call: "Call") -> Results:
    """Evaluate as the call says, and write the report.

    Raises:
        RecipeError, DataError, EvaluationError, SiteError: the call is wrong.
    """
    problems = suite_problems(call.suites, ready_files=call.options.corrupted is not None)
    if problems:
        raise RecipeError(problems)
    accelerator = make_accelerator(_whatever_the_processes(), threads=call.threads)
    subjects = load_subjects(call.models)
    data = find_data(call.data, subjects)
    _check_classes(subjects, data)
    with accelerator.main_process_first():  # one download, one cache
        images = _images_of(subjects, data, call)
    first = images[subjects[0].name]
    header = data_of(data) | {"samples": len(first), "fingerprint": fingerprint(first.labels.numpy(), first.rows)}
    results = Results(call.output, header, force=call.force)
    if call.baseline is not None and call.baseline not in {*results.models, *(subject.name for subject in subjects)}:
        known = [*results.models, *(subject.name for subject in subjects)]
        raise RecipeError([f"--baseline {call.baseline} is none of the models: {', '.join(dict.fromkeys(known))}"])
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
        print("\n" + "\n\n".join(lines) + f"\n\n{call.output / 'report.html'}", flush=True)
    accelerator.wait_for_everyone()
    return results


def find_data(name: str | None, subjects: list[Subject]) -> Recipe:
    """Return a recipe whose data keys say what to test on: of a name, or that of the runs."""
    if name is not None:
        return _named_data(name)
    runs = [subject for subject in subjects if subject.trained_here]
    if not runs:
        raise RecipeError([f"{subjects[0].name} is no run, so it does not say what to test it on: give --data NAME"])
    for other in runs[1:]:
        differing = [key for key, value in data_of(other.recipe).items() if value != getattr(runs[0].recipe, key)]
        if differing:
            raise RecipeError(
                [f"{runs[0].name} and {other.name} differ in {', '.join(differing)}: name the data to test on, --data"]
            )
    return runs[0].recipe


def _named_data(name: str) -> Recipe:
    part = recipes_dir() / "parts" / f"{name}.yaml"
    if name in list_benchmarks():
        return load_recipe(f"{name}_none")
    if name in list_recipes() or Path(name).suffix in (".yaml", ".yml"):
        return load_recipe(name)
    parts = sorted(path.stem for path in part.parent.glob("*.yaml"))
    data_parts = [stem for stem in parts if "dataset" in read_keys(part.parent / f"{stem}.yaml", ()).values]
    if name in data_parts:
        return Recipe.from_dict(read_keys(part, ()).values)
    known = [*list_benchmarks(), *data_parts]
    raise RecipeError([f"--data: unknown data {name!r}{nearest(name, known)}; data are {', '.join(data_parts)}"])


def _check_classes(subjects: list[Subject], data: Recipe) -> None:
    problems = [
        f"--model {subject.name} has {subject.num_classes} classes, the data {data.dataset} has {data.num_classes}"
        for subject in subjects
        if subject.num_classes != data.num_classes
    ]
    if problems:
        raise RecipeError(problems)


def _images_of(subjects: list[Subject], data: Recipe, call: "Call") -> dict[str, TestImages]:
    """Open the test images for each model; models that want them alike share them."""
    opened: dict[str, TestImages] = {}
    images: dict[str, TestImages] = {}
    for subject in subjects:
        kind = str([getattr(subject.recipe, key) for key in _IMAGE_KEYS])
        if kind not in opened:
            recipe = Recipe.from_dict(subject.recipe.to_dict() | data_of(data))
            opened[kind] = load_images(recipe, call.data_dir, limit=call.limit, batch_size=call.batch_size)
        images[subject.name] = opened[kind]
    return images


def _measure(name: str, bench: Bench, results: Results, *, force: bool) -> None:
    suite, subject, seed = SUITES[name], bench.subject, bench.options.seed
    recipe = subject.recipe
    common: dict[str, Any] = {"input_size": recipe.input_size, "crop_pct": recipe.crop_pct}
    settings = common | suite.settings(bench)
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


def _whatever_the_processes() -> Recipe:
    """Return a recipe whose batch any number of processes can share: nothing is trained here."""
    return Recipe.from_dict({"batch_size": int(os.environ.get("WORLD_SIZE", 1))})
