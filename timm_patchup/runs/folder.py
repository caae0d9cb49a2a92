"""The folder of a run: what lies in it, whose it is, and what may be written there.

``recipe.yaml``, ``summary.csv``, ``results.json``, ``curves.png``, ``model.safetensors`` and ``checkpoints/``. Files
are written under another name and renamed, so that a reader never sees half of one. No path is written into any of
them.
"""

import csv
import io
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError
from ..recipe import Recipe, load_recipe
from ..system.files import PARTIAL, replacing

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

State = Literal["new", "unfinished", "finished", "foreign"]
OWN_FILES = ("recipe.yaml", "summary.csv", "results.json", "curves.png", "model.safetensors")
CHECKPOINT_FILES = ("step-*", "aside-step-*", "best-*.safetensors", f"{PARTIAL}*")
COLUMNS = ("epoch", "lr", "train_loss", "val_loss", "val_top1", "val_top5", "val_error")
Row = dict[str, float | None]


class RunFolder:
    """The output folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def state(self) -> State:
        """Return whether there is a run, and whether it is at its end."""
        if not self.path.exists() or all(self._is_left_over(path) for path in self.path.iterdir()):
            return "new"
        if not (self.path / "recipe.yaml").is_file() or not self.checkpoints.is_dir():
            return "foreign"
        return "finished" if (self.path / "results.json").is_file() else "unfinished"

    def _is_left_over(self, path: Path) -> bool:
        """Whether a file is of a run that was ended before it began: then there is nothing to keep."""
        if path == self.checkpoints:
            return all(inside.name == ".lock" for inside in path.iterdir())
        return path.name == ".partial-recipe.yaml"

    def recipe(self) -> Recipe:
        return load_recipe(self.path / "recipe.yaml")

    def refuse_to_overwrite(self) -> None:
        """Raise UserError where files of something else have the names that a run would write over."""
        if self.state() != "foreign":
            return
        taken = [name for name in OWN_FILES if (self.path / name).exists()]
        taken += ["checkpoints/"] if self.checkpoints.exists() and any(self.checkpoints.iterdir()) else []
        if taken:
            names = ", ".join(taken)
            message = (
                f"{self.path} holds no run, but {names} of something else: choose another --experiment or --output"
            )
            raise UserError([message])

    def refuse_unless_new(self) -> None:
        """Raise UserError where something lies that a new run would write over."""
        state = self.state()
        other = "choose another --experiment or --output"
        if state == "finished":
            raise UserError([f"{self.path} holds a finished run: {other}, or --overwrite"])
        if state == "unfinished":
            raise UserError(
                [f"{self.path} holds a run that is not finished: go on with --resume, {other}, or --overwrite"]
            )
        if state == "foreign":
            raise UserError([f"{self.path} holds files of something else: {other}; --overwrite puts a run beside them"])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the folder to this process inside.

        Workers of a launcher that was killed may live on: they must not write beside those of the next start.

        Raises:
            UserError: another process is training there.
        """
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        with (self.checkpoints / ".lock").open("w") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    message = f"another process is training in {self.path}: wait for it or stop it"
                    raise UserError([message]) from None
                except OSError:  # a file system without locks
                    pass
            yield

    def in_use(self) -> bool:
        """Whether another process is training there."""
        try:
            with (self.checkpoints / ".lock").open("r") as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # there is no run yet, or no locks
            return False
        return False

    def clear(self) -> None:
        """Remove what a run writes, and nothing else."""
        for name in OWN_FILES:
            (self.path / name).unlink(missing_ok=True)
        for path in (path for pattern in CHECKPOINT_FILES for path in self.checkpoints.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def begin(self, recipe: Recipe, name: str) -> None:
        """Make the folder and write the recipe into it."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        head = (
            f"# {name}, resolved. Train it again: accelerate launch -m timm_patchup.training --recipe recipe.yaml\n"
            "# With timm's own train.py: timm-patchup path/to/train.py --recipe recipe.yaml\n"
        )
        self.write_text("recipe.yaml", head + recipe.to_yaml())

    def write_summary(self, rows: Sequence[Row]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if row[name] is None else row[name] for name in COLUMNS} for row in rows)
        self.write_text("summary.csv", text.getvalue())

    def write_results(self, results: dict[str, Any]) -> None:
        self.write_text("results.json", json.dumps(results, indent=1) + "\n")

    def results(self) -> dict[str, Any]:
        return json.loads((self.path / "results.json").read_text(encoding="utf-8"))

    def copy_in(self, source: Path, name: str) -> None:
        """Put a copy of a file into the folder, whole or not at all."""
        with replacing(self.path / name) as partial:
            shutil.copyfile(source, partial)

    def write_text(self, name: str, text: str) -> None:
        with replacing(self.path / name) as partial:
            partial.write_text(text, encoding="utf-8")
