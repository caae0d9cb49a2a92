"""From a run of a study to the commands that make it: the training command, then the evaluation if it needs one."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from ..cli.recipe_flags import given_keys
from ..data.source import name_of
from ..errors import UserError
from ..recipe import Recipe, load_recipe
from .definition import Run, Study

# Flags of the training command that the study gives itself.
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
    "list_recipes": "scripts/train.py",
    "show_recipe": "scripts/train.py",
}


@dataclass(frozen=True)
class Options:
    """How the runs of a study are made.

    Args:
        folder: the folder of the study.
        limit: samples of each split, None for all.
        data_dir: folder of local data, None for the Hub.
        threads: threads of each process, None to leave it to the training command.
        extra: more flags of the training command.
        corrupted: ready files of corrupted test images, None to make them on the fly.
    """

    folder: Path
    limit: int | None = None
    data_dir: Path | None = None
    threads: int | None = None
    extra: tuple[str, ...] = ()
    corrupted: str | None = None

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def reports(self) -> Path:
        """Reports on ready files lie beside those on images made on the fly: neither is taken for the other."""
        ready = "" if self.corrupted is None else f"_{name_of(self.corrupted).replace('/', '_')}"
        return self.folder / f"reports{ready}"

    def report(self, run: Run) -> Path:
        return self.reports / run.name

    def log(self, run: Run) -> Path:
        return self.folder / "logs" / f"{run.name}.log"


@cache
def extra_keys(extra: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys of a recipe among more flags of the training command.

    Raises:
        UserError: a flag that the training command does not know, or that the study gives itself.
    """
    from ..cli.train import make_parser

    parser = make_parser()
    defaults = vars(parser.parse_args([]))
    given, unknown = parser.read(extra)
    problems = [f"after --: {problem}" for problem in unknown]
    for name, remedy in _RESERVED.items():
        if getattr(given, name, None) != defaults.get(name):
            problems.append(f"--{name.replace('_', '-')} after -- is the study's own: use {remedy}")
    if problems:
        raise UserError(problems)
    return given_keys(given)


def run_keys(run: Run, options: Options) -> dict[str, Any]:
    """Return the keys that override those of the run's recipe; what the user says goes over what the study says."""
    limit = {} if options.limit is None else {"limit": options.limit}
    return {**run.condition.overrides, "seed": run.seed, **limit, **extra_keys(options.extra)}


def run_recipe(run: Run, options: Options) -> Recipe:
    """Return the recipe that a run will have; raise UserError where there is none."""
    return load_recipe(run.condition.recipe, run_keys(run, options))


def commands(study: Study, run: Run, options: Options) -> list[list[str]]:
    """Return the commands of a run, in the order they are run in; the first word of each is ``python``."""
    own = flags({**run.condition.overrides, "seed": run.seed})
    shared = [] if options.limit is None else ["--limit", str(options.limit)]
    shared += [] if options.threads is None else ["--threads", str(options.threads)]
    shared += data_flags(run, study, options.data_dir)
    folder = ["--output", options.runs.as_posix(), "--experiment", run.name]
    name = ["--recipe", run.condition.recipe]
    module = "timm_patchup.study.timing" if study.measure == "timing" else "timm_patchup.training"
    training = ["python", "-m", module, *name, *folder, *shared, *own, *options.extra, "--resume"]
    if not study.evaluation:
        return [training]
    model = (PurePosixPath(options.runs.as_posix()) / run.name).as_posix()
    report = ["--output", options.report(run).as_posix()]
    suites = ["--suite", ",".join(dict.fromkeys(part.suite for part in study.evaluation))]
    evaluation = ["python", "-m", "timm_patchup.evaluation", "--model", model, *suites, *report, *shared]
    evaluation += [] if options.corrupted is None else ["--corrupted", options.corrupted]
    return [training, evaluation]


def flags(keys: Mapping[str, Any]) -> list[str]:
    """Return keys of a recipe as the words of a command."""
    words = []
    for name, value in keys.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool) and not name.startswith("mix_"):
            words.append(flag if value else f"--no-{name.replace('_', '-')}")
        elif isinstance(value, Mapping):
            words += [flag, *(f"{key}={item}" for key, item in value.items())]
        else:
            items = value if isinstance(value, (list, tuple)) else [value]
            words += [flag, *("none" if item is None else str(item) for item in items)]
    return words


def data_flags(run: Run, study: Study, data_dir: Path | None) -> list[str]:
    """Return where the data of a run lies: a folder of the data set's name, or the one folder of a single data set.

    Raises:
        UserError: the study needs several data sets and the folder does not hold this one.
    """
    if data_dir is None or study.measure == "timing":
        return []
    name = _data_name(run.condition.recipe)
    if (data_dir / name).is_dir():
        return ["--data-dir", (data_dir / name).as_posix()]
    names = {_data_name(condition.recipe) for condition in study.conditions}
    if len(names) > 1:
        expected = ", ".join(sorted(names))
        raise UserError([f"--data-dir: {study.name} needs several data sets, as folders {expected} in it; no {name}"])
    return ["--data-dir", data_dir.as_posix()]


@cache
def _data_name(recipe: str) -> str:
    return load_recipe(recipe).dataset.rsplit("/", 1)[-1]
