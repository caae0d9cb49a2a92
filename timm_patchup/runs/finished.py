"""A finished run as one value: its recipe, results, summary and weights, read once.

An export works with this value and does not read the folder again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import HubError, UserError
from ..recipe import Recipe
from ..system.files import checksum
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
        raise HubError(f"{path}: the run is not finished: resume it (train.py --resume {path}), then try again")
    if state != "finished":
        raise HubError(f"{path} has no run: give the folder that has recipe.yaml and results.json")
    recipe = read_recipe(path)
    try:
        results, summary = folder.results(), folder.summary()
        parse_summary(summary)
    except UserError as error:
        raise HubError(f"{error}; restore the file, or train again (train.py --overwrite)", retry=True) from error
    weights = read_weights(path / WEIGHTS)
    tested = results.get("weights_sha256")  # runs of earlier releases have none
    if tested is not None and checksum(path / WEIGHTS) != tested:
        damaged = f"{path / WEIGHTS} is damaged, or is not what was tested"
        raise HubError(f"{damaged}: copy it from {folder.checkpoints.name}/best-*", retry=True)
    return FinishedRun(path, recipe, results, summary, weights)
