"""A finished run as one value: its recipe, results, summary and weights, read once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import HubError
from ..recipe import Recipe
from .folder import EpochRow, RunFolder, parse_summary
from .from_run import read_recipe
from .weights import WEIGHTS, read_weights


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Attributes:
        path: its folder.
        recipe: its resolved recipe.
        results: the content of results.json.
        summary: the text of summary.csv.
        weights: the weights of the chosen epoch, by name.
    """

    path: Path
    recipe: Recipe
    results: dict[str, Any]
    summary: str
    weights: dict[str, Tensor]

    @property
    def rows(self) -> list[EpochRow]:
        """The epochs of the summary."""
        return parse_summary(self.summary)


def read_finished_run(path: Path) -> FinishedRun:
    """Read a finished run.

    Raises:
        HubError: the folder has no run, the run is not finished, or its recipe or weights cannot be read.
    """
    folder = RunFolder(path)
    state = folder.state()
    if state == "unfinished":
        raise HubError(f"{path}: the run is not finished: resume it with --resume {path}, then run the command again")
    if state != "finished":
        raise HubError(f"{path} has no run: give the folder that has recipe.yaml and results.json")
    return FinishedRun(path, read_recipe(path), folder.results(), folder.summary(), read_weights(path / WEIGHTS))
