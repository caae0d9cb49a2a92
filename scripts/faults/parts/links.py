"""Planted links, to files and folders elsewhere, at names that a run or an export writes: what they lead to is kept."""

import random
import shutil
from pathlib import Path

from ..tally import Tally
from ..trials import Training, scratch
from ..victims import Victims
from .damage import ALONE, export, resume, stop_late

OWN = ["summary.csv", "results.json", "curves.png", "confusion.png", "model.safetensors"]
CHECKPOINTS = ["best-00002.safetensors", "step-00000010", "local.json"]
# Names of a run; an export's files are in its folder, or next to it.
OF_RUN = [*OWN, *(f".partial-{name}" for name in OWN), "checkpoints/.lock", "checkpoints/aside-step-00000008"]
OF_RUN += [f"checkpoints/{partial}{name}" for name in CHECKPOINTS for partial in ("", ".partial-", ".partial-old-")]
OF_EXPORT = [".partial-hub", "hub", ".hub.lock", "checkpoints/.lock", "report", "report.md", "confusion.png"]


def trials(count: int, chooser: random.Random) -> list[Tally]:
    resumed, exported = Tally("planted links, run resumed"), Tally("planted links, run exported")
    with scratch() as folder:
        stop_late(folder)
        for _ in range(count - count // 4):
            with scratch() as copy:
                shutil.copytree(folder / "a", copy / "a")
                victims = Victims(copy / "elsewhere")
                names = _plant(copy / "a", OF_RUN, victims, chooser)
                resume(resumed, copy, f"links {names}")
                _count(resumed, victims, names)
    with scratch() as folder:
        assert Training(folder, ALONE).wait() == [0]
        for _ in range(count // 4):
            with scratch() as copy:
                shutil.copytree(folder / "a", copy / "a")
                victims = Victims(copy / "elsewhere")
                names = _plant(copy / "a", OF_EXPORT, victims, chooser)
                export(exported, copy, f"links {names}", needed=False)
                _count(exported, victims, names)
    return [resumed, exported]


def _plant(run: Path, places: list[str], victims: Victims, chooser: random.Random) -> list[str]:
    names = chooser.sample(places, chooser.randint(1, 4))
    for name in names:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(chooser.choice([victims.file, victims.inside, victims.nowhere, path]))
    return names


def _count(tally: Tally, victims: Victims, names: list[str]) -> None:
    if harm := victims.harm():
        tally.fail(f"links {names}: {harm} changed")
