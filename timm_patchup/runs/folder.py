"""The folder of a run: its files, its state, and its lock.

``recipe.yaml``, ``summary.csv``, ``results.json``, ``curves.png``, ``confusion.png``, ``model.safetensors`` and
``checkpoints/``. Files are written under a temporary name and renamed, so that a reader never sees a partial one. None
contains a path, except ``checkpoints/local.json`` (``local.py``).
"""

import csv
import io
import json
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast, get_args

from ..errors import RunError, UserError, one_line
from ..recipe import Recipe
from ..recipe.compose import read_resolved
from ..report.tables import comma_separated
from ..system.checked import check_keys, read_json, read_text
from ..system.files import (
    PARTIAL,
    create_folder,
    make_folder,
    open_file,
    refuse_folders,
    refuse_unusable_folder,
    remove,
    replacing,
    write_whole,
)
from ..system.locks import LOCK, is_locked, locked

State = Literal["new", "unfinished", "finished", "foreign"]
STATES: tuple[State, ...] = get_args(State)
OWN_FILES = ("recipe.yaml", "summary.csv", "results.json", "curves.png", "confusion.png", "model.safetensors")
LOCAL_PATHS = "local.json"
CHECKPOINT_FILES = ("step-*", "aside-step-*", "best-*.safetensors", LOCAL_PATHS, f"{PARTIAL}*")
# train_loss is the objective; train_nll and train_top1 compare with val_loss and val_top1: cross-entropy with the mixed
# targets, neither doubled nor smoothed, and the share of predictions of the label with the larger share.
COLUMNS = ("epoch", "lr", "train_loss", "train_nll", "train_top1", "val_loss", "val_top1", "val_top5", "val_error")
_NEWER_COLUMNS = ("train_nll", "train_top1")  # runs of earlier releases have none
EpochRow = dict[str, float | None]
# What results.json must have.
RESULTS = {"test": dict, "best_epoch": int, "epochs": int, "chosen_on": str, "weights": str}
TEST_RESULTS = {"error": float, "top1": float, "top5": float, "loss": float, "count": int}
MEDIAN_RESULTS = {"epochs": list, "error": float, "top1": float, "top5": float, "loss": float}


class RunFolder:
    """The output folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def state(self) -> State:
        """Return whether the folder has a run, and whether it is finished; ``foreign`` if it has only other files.

        Raises:
            UserError: it is a file, or cannot be created.
        """
        refuse_unusable_folder(self.path)
        if not self.path.exists() or all(self._is_left_over(path) for path in self.path.iterdir()):
            return "new"
        if not (self.path / "recipe.yaml").is_file() or not self.checkpoints.is_dir():
            return "foreign"
        return "finished" if (self.path / "results.json").is_file() else "unfinished"

    def _is_left_over(self, path: Path) -> bool:
        """Return whether a file was left by a run that was killed before it started."""
        if path == self.checkpoints:
            return all(inside.name == LOCK for inside in path.iterdir())
        return path.name == ".partial-recipe.yaml"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write files of a run that has begun, but not into a folder that was removed meanwhile.

        Raises:
            RunError: the folder was removed.
        """
        try:
            self._refuse_if_removed()
            yield
        except FileNotFoundError:
            self._refuse_if_removed()
            raise
        self._refuse_if_removed()

    def _refuse_if_removed(self) -> None:
        if not (self.path / "recipe.yaml").is_file() or not self.checkpoints.is_dir():
            raise RunError(f"{self.path} was removed or emptied while the run was at work: it ends here")

    def recipe(self) -> Recipe:
        return read_resolved(self.path / "recipe.yaml")

    def refuse_unusable(self) -> None:
        """Raise UserError if something in the folder keeps a run from writing there, or leads it to another folder."""
        refuse_folders(self.path / name for name in OWN_FILES)
        if self.checkpoints.is_symlink():  # old checkpoints are removed
            way = f"move the folder it points to here, or link {self.path} as a whole"
            raise UserError(
                f"{self.checkpoints} is a link, through which a run could remove files of another one: {way}"
            )

    def refuse_to_overwrite(self) -> None:
        """Raise UserError if a run would overwrite files that are not from a run."""
        if self.state() != "foreign":
            return
        taken = [name for name in OWN_FILES if (self.path / name).exists()]
        taken += ["checkpoints/"] if self.checkpoints.exists() and any(self.checkpoints.iterdir()) else []
        if taken:
            raise UserError(
                f"{self.path} has {', '.join(taken)}, but they are not from a run: choose another experiment or output"
            )

    def refuse_unless_new(self) -> None:
        """Raise UserError if the folder has anything that a new run would overwrite."""
        state = self.state()
        other, overwrite = "choose another experiment or output", "overwrite it (--overwrite)"
        if state == "finished":
            raise UserError(f"{self.path} has a finished run: {other}, or {overwrite}")
        if state == "unfinished":
            raise UserError(f"{self.path} has an unfinished run: resume it (--resume), {other}, or {overwrite}")
        if state == "foreign":
            raise UserError(
                f"{self.path} has files that are not from a run: {other}; --overwrite keeps them and adds a run"
            )

    @contextmanager
    def locked(self, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Lock the folder for this process.

        Workers of a launcher that was killed may still be alive: they must not write next to the next start's workers.

        Args:
            waiting: wait for another process that is at work there, and call this first.

        Raises:
            UserError: another process is at work there.
        """
        make_folder(self.checkpoints)
        busy = f"another process is at work in {self.path}: wait for it or stop it"
        with locked(self._lock, busy=busy, waiting=waiting):
            yield

    def in_use(self) -> bool:
        """Return whether another process is training there."""
        return is_locked(self._lock)

    @property
    def _lock(self) -> Path:
        return self.checkpoints / LOCK

    def clear(self) -> None:
        """Remove the files of a run, and nothing else; if that is interrupted, the folder has an unfinished run."""
        (self.path / "results.json").unlink(missing_ok=True)
        for path in [path for pattern in CHECKPOINT_FILES for path in self.checkpoints.glob(pattern)]:
            remove(path)
        for name in sorted(OWN_FILES, key="recipe.yaml".__eq__):  # last: with it the folder belongs to a run
            (self.path / name).unlink(missing_ok=True)

    def begin(self, recipe: Recipe, name: str) -> None:
        """Create the folder and write the recipe."""
        create_folder(self.checkpoints)
        head = (
            f"# {name}, resolved. Train it again: python -m timm_patchup.training --recipe recipe.yaml\n"
            "# With timm's own train.py: timm-patchup path/to/train.py --recipe recipe.yaml\n"
        )
        self.write_text("recipe.yaml", head + recipe.to_yaml())

    def write_summary(self, rows: Sequence[EpochRow]) -> None:
        # Rows of checkpoints that an earlier release wrote lack the newer columns.
        self.write_text("summary.csv", comma_separated([COLUMNS, *(map(row.get, COLUMNS) for row in rows)]))

    def summary(self) -> str:
        """Return the text of summary.csv."""
        return read_text(self.path / "summary.csv")

    def write_results(self, results: dict[str, Any]) -> None:
        self.write_text("results.json", json.dumps(results, indent=1, allow_nan=False) + "\n")

    def results(self) -> dict[str, Any]:
        """Return the content of results.json.

        Raises:
            UserError: it is damaged.
        """
        path = self.path / "results.json"
        results = read_json(path)
        if "time_ratio" in results:
            return check_keys(results, {"time_ratio": float}, where=str(path))
        check_keys(results, RESULTS, where=str(path))
        check_keys(results["test"], TEST_RESULTS, where=f"{path}: test")
        if "median" in results:
            check_keys(results["median"], MEDIAN_RESULTS, where=f"{path}: median")
        return results

    def copy_in(self, source: Path, name: str) -> None:
        """Copy a file into the folder, whole or not at all."""
        with replacing(self.path / name) as file, open_file(source) as copied:
            shutil.copyfileobj(copied, file)

    def write_text(self, name: str, text: str) -> None:
        write_whole(self.path / name, text)


def median_of(rows: Sequence[EpochRow], count: int) -> dict[str, Any]:
    """Return the median of each metric over the last ``count`` epochs, all of which were tested, and their numbers."""
    last = rows[-count:]
    names = ("error", "top1", "top5", "loss")
    medians = {name: statistics.median(cast(float, row[f"val_{name}"]) for row in last) for name in names}
    return {"epochs": [row["epoch"] for row in last], **medians}


def parse_summary(text: str) -> list[EpochRow]:
    """Return the rows of a summary.csv; None for an epoch without validation.

    Raises:
        UserError: it is damaged.
    """
    rows: list[EpochRow] = []
    try:
        reader = csv.DictReader(io.StringIO(text))
        names = reader.fieldnames or ()
        if not set(COLUMNS) - {*_NEWER_COLUMNS} <= set(names):
            raise ValueError("columns are missing")
        for row in reader:
            if None in (row[name] for name in names) or not row["epoch"]:
                raise ValueError("it is cut off")
            rows.append({name: float(row[name]) if row.get(name) else None for name in COLUMNS})
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise UserError(f"summary.csv is damaged: row {len(rows) + 1}: {one_line(error, 80)}") from None
    return rows
