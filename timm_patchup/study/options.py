"""How a study is run: its folders, and the recipe of each of its runs. The commands are made in ``cli``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..core.outside import require_consent
from ..evaluation.suites import option_values, study_options
from ..recipe import Recipe, load_recipe
from ..training.infer import name_after_folder
from .definition import Evaluation, Run
from .seeds import SeedRows


@dataclass(frozen=True)
class StudyOptions:
    """How the runs of a study are made.

    Attributes:
        folder: the folder of the study.
        limit: number of samples per split, None for all.
        data_dir: folder of local data, None for the Hub.
        threads: threads per run, None for the default of the training command.
        overrides: keys of a recipe that the user gave for all runs.
        given: values of the suites' options that the user gave.
        finished: rows of finished runs whose folders may be gone.
        allow_imports: whether to import the methods from outside that the file of the study names.
    """

    folder: Path
    limit: int | None = None
    data_dir: Path | None = None
    threads: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    finished: SeedRows = field(default_factory=dict)
    allow_imports: bool = False

    @property
    def of_suites(self) -> dict[str, Any]:
        """The options of all suites, as the runs of the study are evaluated with."""
        defaults = {name: option.default_in_study for name, option in study_options().items()}
        return option_values({**defaults, **self.given})

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def reports(self) -> Path:
        """The folder of the reports, one per values of the suites' options: none is mistaken for another."""
        parts = ["reports"]
        for name, option in study_options().items():
            if (value := self.of_suites[name]) != option.default_in_study:
                parts.append(option.label(value) if option.label else f"{name}_{value}")
        return self.folder / "_".join(parts).replace("/", "_")

    def images_of(self, part: Evaluation) -> int | None:
        """The number of images of an evaluation, None for all."""
        return min((limit for limit in (self.limit, part.limit) if limit is not None), default=None)

    def report(self, run: Run, images: int | None = None) -> Path:
        """The report of a run. Evaluations on fewer images than the study's have another, as their data is other."""
        return self.reports / (run.name if images in (None, self.limit) else f"{run.name}-{images}_images")

    def data_of(self, run: Run) -> Path | None:
        """The folder of a run's data: a subfolder with the name of its dataset, or else the folder itself."""
        if self.data_dir is None:
            return None
        inside = self.data_dir / data_name(run.condition.recipe)
        return inside if inside.is_dir() else self.data_dir

    def log(self, run: Run) -> Path:
        return self.folder / "logs" / f"{run.name}.log"


def run_keys(run: Run, options: StudyOptions) -> dict[str, Any]:
    """Return the keys that override the run's recipe; the user's keys override the study's."""
    limit = {} if options.limit is None else {"limit": options.limit}
    return {**run.condition.overrides, "seed": run.seed, **limit, **options.overrides}


def run_recipe(run: Run, options: StudyOptions) -> Recipe:
    """Return the recipe of a run as the run records it, but with ``auto``; raise UserError if there is none."""
    if "mix" not in options.overrides:
        mix = run.condition.overrides.get("mix")
        require_consent(mix, named_in="the study", allowed=options.allow_imports)
    return name_after_folder(load_recipe(run.condition.recipe, run_keys(run, options)), options.data_of(run))


@cache
def data_name(recipe: str) -> str:
    """Return the name of a recipe's dataset without its owner."""
    return load_recipe(recipe).dataset.rsplit("/", 1)[-1]
