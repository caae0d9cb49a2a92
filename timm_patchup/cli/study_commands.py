"""The commands of a run of a study: training or timing, then evaluation, as words of a command line.

Flags that the study sets itself are refused after ``--``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError
from ..evaluation.suites import study_options
from ..study.definition import Run, Study
from ..study.options import StudyOptions, data_name
from .recipe_flags import given_keys
from .train import make_parser

# Flags of the training command that a study sets itself, with what to use instead.
_RESERVED = {
    "recipe": "--study",
    "output": "--output before the --",
    "experiment": "--study",
    "seed": "--seeds",
    "limit": "--limit before the --",
    "data_dir": "--data-dir before the --",
    "threads": "--threads before the --",
    "resume": "nothing: a study always resumes",
    "overwrite": "another --output",
    "allow_imports": "--allow-imports before the --",
    "list_recipes": "scripts/train.py",
    "show_recipe": "scripts/train.py",
}


def parse_training_flags(words: Sequence[str]) -> dict[str, Any]:
    """Return the keys of a recipe among more flags of the training command.

    Raises:
        UserError: a flag that the training command does not know, or that the study sets itself.
    """
    parser = make_parser()
    defaults = vars(parser.parse_args([]))
    given, unknown = parser.read(words)
    problems = [f"after --: {problem}" for problem in unknown]
    for name, instead in _RESERVED.items():
        if getattr(given, name, None) != defaults.get(name):
            problems.append(f"--{name.replace('_', '-')} after -- is set by the study: use {instead}")
    if problems:
        raise UserError(problems)
    return given_keys(given)


def commands(study: Study, run: Run, options: StudyOptions, extra: Sequence[str] = ()) -> list[list[str]]:
    """Return the commands of a run in order; the first word of each is ``python``.

    Args:
        study: the study.
        run: one of its runs.
        options: how it is run.
        extra: more flags of the training command, whose keys are in ``options.overrides``.
    """
    own = flags({**run.condition.overrides, "seed": run.seed})
    shared = [] if options.threads is None else ["--threads", str(options.threads)]
    shared += data_flags(run, study, options)
    folder = ["--output", options.runs.as_posix(), "--experiment", run.name]
    name = ["--recipe", run.condition.recipe]
    module = "timm_patchup.cli.timing" if study.measure == "timing" else "timm_patchup.training"
    training = ["python", "-m", module, *name, *folder, *_limit(options.limit), *shared, *own, *extra, "--resume"]
    if not study.evaluation:
        return [training]
    model = (options.runs / run.name).as_posix()
    evaluation = ["python", "-m", "timm_patchup.evaluation", "--model", model]
    suites: dict[int | None, list[str]] = {}  # by the number of images
    for part in study.evaluation:
        limit = options.images_of(part)
        suites[limit] = list(dict.fromkeys([*suites.get(limit, []), part.suite]))
    found = [training]
    for limit, names in suites.items():
        report = ["--output", options.report(run, limit).as_posix()]
        words = [*evaluation, "--suite", ",".join(names), *report, *_limit(limit), *shared]
        for option in study_options(names).values():
            value = options.of_suites[option.name]
            words += [] if value is None else [option.flag, str(value)]
        found.append(words)
    return found


def _limit(samples: int | None) -> list[str]:
    return [] if samples is None else ["--limit", str(samples)]


def flags(keys: Mapping[str, Any]) -> list[str]:
    """Return keys of a recipe as words of a command line."""
    words = []
    for name, value in keys.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool) and not name.startswith("mix_"):
            words.append(flag if value else f"--no-{name.replace('_', '-')}")
        elif name == "mix_settings":
            words += [flag, *(f"{one}.{key}={_word(item)}" for one, own in value.items() for key, item in own.items())]
        elif isinstance(value, Mapping):
            words += [flag, *(f"{key}={item}" for key, item in value.items())]
        else:
            items = value if isinstance(value, (list, tuple)) else [value]
            words += [flag, *(_word(item) for item in items)]
    return words


def _word(value: Any) -> str:
    return "none" if value is None else str(value).replace(" ", "") if isinstance(value, list) else str(value)


def data_flags(run: Run, study: Study, options: StudyOptions) -> list[str]:
    """Return the flag for the data of a run.

    Raises:
        UserError: the study needs several datasets and the folder does not have this one.
    """
    folder = options.data_of(run)
    if folder is None or study.measure == "timing":
        return []
    names = {data_name(condition.recipe) for condition in study.conditions}
    if folder == options.data_dir and len(names) > 1:
        expected, name = ", ".join(sorted(names)), data_name(run.condition.recipe)
        raise UserError(f"--data-dir {folder}: {study.name} needs the folders {expected} in it; {name} is missing")
    return ["--data-dir", folder.as_posix()]
