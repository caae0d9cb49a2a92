"""Published numbers, from ``recipes/paper_results.yaml``, and the lookup for a row of a study.

They are from the paper, or from another source that the table names. Units are converted here, so that a table
compares like with like.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import UserError, brief, nearest
from ..recipe.compose import recipes_dir
from ..system.checked import read_yaml
from .definition import Condition, Study

PAPER = "paper"


@dataclass(frozen=True)
class PaperNumber:
    """A published number: mean, standard deviation or None, the label of the table, and whose it is."""

    mean: float
    std: float | None
    table: str
    source: str = PAPER


@cache
def paper_tables() -> dict[str, dict[str, Any]]:
    """Return the tables by label: the paper's LaTeX label, or the name of another source."""
    return {table["label"]: table for table in read_yaml(recipes_dir() / "paper_results.yaml")}


def source_of(numbers: Iterable[PaperNumber | None]) -> str:
    """Return the source of these numbers: the paper, or another one."""
    return " and ".join(dict.fromkeys(number.source for number in numbers if number is not None)) or PAPER


def require_tables(study: Study) -> None:
    """Raise UserError if a study names a table that is not there; its numbers are needed when a run has ended."""
    unknown = [label for label in study.paper if label not in paper_tables()]
    if unknown:
        known = paper_tables()
        raise UserError([f"{study.name}: the paper has no table {brief(one)}{nearest(one, known)}" for one in unknown])


def paper_number(study: Study, condition: Condition, setting: str, metric: str) -> PaperNumber | None:
    """Return the paper's number for a row of a study, None if it has none.

    Fractions are converted to percent, as in all our numbers.
    """
    if study.paper_ratio is None:
        return _find(study, condition, setting, metric, condition.method)
    paper_metric, reference = study.paper_ratio
    above = _find(study, condition, setting, paper_metric, condition.method)
    below = _find(study, condition, setting, paper_metric, reference)
    if above is None or below is None:
        return None
    return PaperNumber(above.mean / below.mean, None, above.table)


def _find(study: Study, condition: Condition, setting: str, metric: str, method: str) -> PaperNumber | None:
    wanted = (method, setting, metric)
    for label in study.paper:
        table = paper_tables()[label]
        for entry in table["entries"]:
            named = entry.get("benchmark")
            of_benchmark = condition.benchmark in named if isinstance(named, list) else condition.benchmark == named
            if of_benchmark and (entry.get("method"), entry.get("setting", ""), entry["metric"]) == wanted:
                percent = 100.0 if table["units"][metric] == "share" else 1.0
                std = entry.get("std")
                return PaperNumber(
                    percent * entry["mean"], None if std is None else percent * std, label, table.get("source", PAPER)
                )
    return None
