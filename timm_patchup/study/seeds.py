"""The values of every seed of a study as a CSV file: one row per run, with the code and the recipe that made it.

The file outlives the folders of the runs: with ``--seeds-from``, a row that is in it counts as a finished run.
"""

import csv
import hashlib
import io
import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from pathlib import Path

from .. import __version__
from ..core.method import method_settings
from ..core.settings import plain, settings_of
from ..errors import UserError, one_line
from ..recipe import Recipe
from ..recipe.rules import a_subset
from ..recipe.schema import KEYS_FREE_TO_CHANGE_ON_RESUME, MIX_PREFIX
from ..report.tables import comma_separated
from ..system.checked import read_text
from ..system.files import write_whole
from .definition import Run

_HEAD = ("benchmark", "method", "setting", "seed", "data_seed", "recipe", "commit", "cpu_minutes")


@dataclass(frozen=True)
class SeedRow:
    """One finished run.

    Attributes:
        place: benchmark, method and setting.
        seed: the seed of the run.
        data_seed: the seed that drew its images, None if it uses all of them.
        recipe: ``recipe_digest`` of its recipe.
        commit: the commit of the code, or its version; empty if unknown.
        cpu_minutes: its cost on all cores, None if unknown.
        values: its metrics: ``test_error``, or ``affine_error scale 0.6`` for a value of a suite.
    """

    place: tuple[str, str, str]
    seed: int
    data_seed: int | None
    recipe: str
    commit: str = ""
    cpu_minutes: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)


SeedRows = dict[tuple[str, str, str, int], SeedRow]


def key_of(run: Run) -> tuple[str, str, str, int]:
    condition = run.condition
    return condition.benchmark, condition.method, condition.setting, run.seed


def read_seeds(path: Path) -> SeedRows:
    """Return the rows of a file of seeds, by benchmark, method, setting and seed.

    Raises:
        UserError: it is missing or damaged.
    """
    text, rows = read_text(path), SeedRows()
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        names = list(reader.fieldnames or ())
        if names[: len(_HEAD)] != list(_HEAD):
            raise ValueError(f"the columns must begin with {', '.join(_HEAD)}")
        for line in reader:
            if None in line or None in line.values():
                raise ValueError("it has more or fewer fields than columns")
            values = {name: float(line[name]) for name in names[len(_HEAD) :] if line[name]}
            if not all(map(isfinite, values.values())):
                raise ValueError("a value is not finite")
            row = SeedRow(
                place=(line["benchmark"], line["method"], line["setting"]),
                seed=int(line["seed"]),
                data_seed=int(line["data_seed"]) if line["data_seed"] else None,
                recipe=line["recipe"],
                commit=line["commit"],
                cpu_minutes=float(line["cpu_minutes"]) if line["cpu_minutes"] else None,
                values=values,
            )
            key = (*row.place, row.seed)
            if key in rows:
                raise ValueError("a run is there twice")
            rows[key] = row
    except (csv.Error, ValueError) as error:
        raise UserError(f"{path} is damaged: row {len(rows) + 1}: {one_line(error, 120)}") from None
    return rows


def write_seeds(path: Path, rows: Iterable[SeedRow]) -> None:
    """Write rows to a file of seeds, with all digits; a field without a value is empty."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row.values))
    lines: list[tuple[object, ...]] = [(*_HEAD, *columns)]
    for row in rows:
        minutes = None if row.cpu_minutes is None else round(row.cpu_minutes, 2)
        head = (*row.place, row.seed, row.data_seed, row.recipe, row.commit, minutes)
        lines.append((*head, *map(row.values.get, columns)))
    write_whole(path, comma_separated(lines))


def recipe_digest(recipe: Recipe) -> str:
    """Return a short digest of what affects the result of a recipe, but for the seed.

    Only keys that differ from their defaults count, so that a new key leaves it as it is.
    """
    flat = {name: value for name, value in recipe.to_dict().items() if not _is_default(recipe, name, value)}
    for name in ("seed", *KEYS_FREE_TO_CHANGE_ON_RESUME):
        flat.pop(name, None)
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()[:12]


def _is_default(recipe: Recipe, name: str, value: object) -> bool:
    declared = settings_of(Recipe).get(name)
    if declared is None and isinstance(recipe.mix, str):
        declared = method_settings(recipe.mix).get(name.removeprefix(MIX_PREFIX))
    return declared is not None and value == plain(declared.default)


def data_seed(recipe: Recipe) -> int | None:
    """Return the seed that draws the images of a run; None if it uses all of them."""
    if a_subset(recipe):
        return None
    return recipe.seed if recipe.split_by_seed else recipe.split_seed


@cache
def current_commit() -> str:
    """Return the commit of the code, with ``+`` if files of it have changed since; outside a checkout the version."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return __version__

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "--short=10", "HEAD")
        changed = git("status", "--porcelain", "-uno", "--", "timm_patchup")
    except (OSError, subprocess.CalledProcessError):
        return __version__
    return commit + ("+" if changed else "") if re.fullmatch("[0-9a-f]+", commit) else __version__
