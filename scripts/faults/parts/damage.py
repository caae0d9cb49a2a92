"""Damaged files: every file of a stopped run, which is then resumed, and of a finished one, which is then exported."""

import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..forked import Forked, are_lines
from ..tally import Tally
from ..timeline import POINTS, Timeline, signal_at
from ..trials import Kind, Training, scratch, undisturbed

ALONE = Kind(1, 0)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes() or b"x")
    content[len(content) // 2] ^= 0x5A
    path.write_bytes(content)


WAYS: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": _flip,
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "other": lambda path: path.write_bytes(b'{"a": [1, 2], "test": 3, "models": []}'),
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
}


def trials(count: int, chooser: random.Random) -> list[Tally]:
    resumed, exported = Tally("damaged file of a stopped run, resumed"), Tally("damaged file of a finished run, read")
    with scratch() as folder:
        stop_late(folder)
        for name, way in _some(_cases(folder / "a"), count // 2, chooser):
            with scratch() as copy:
                shutil.copytree(folder / "a", copy / "a")
                WAYS[way](copy / "a" / name)
                resume(resumed, copy, f"{name} {way}")
    with scratch() as folder:
        assert Training(folder, ALONE).wait() == [0]
        shutil.rmtree(folder / "a" / "checkpoints")
        (folder / "a" / "checkpoints").mkdir()
        for name, way in _some(_cases(folder / "a"), count - count // 2, chooser):
            with scratch() as copy:
                shutil.copytree(folder / "a", copy / "a")
                WAYS[way](copy / "a" / name)
                export(exported, copy, f"{name} {way}", needed=name.name not in ("summary.csv", "recipe.yaml"))
    return [resumed, exported]


def stop_late(folder: Path) -> None:
    """Stop a training when it has checkpoints of both epochs."""
    timeline = undisturbed(ALONE).timelines[0]
    updates = [n for n, event in enumerate(timeline.events()) if POINTS[event.point][1] == "update"]

    def prepare(rank: int, timeline: Timeline) -> None:
        signal_at(timeline, updates[7], after=True, number=signal.SIGTERM)

    assert Training(folder, ALONE, prepare=prepare).wait() == [143]


def _cases(run: Path) -> list[tuple[Path, str]]:
    files = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file())
    return [(name, way) for name in files if name.name != ".lock" and name.suffix != ".png" for way in WAYS]


def _some(cases: list[Any], count: int, chooser: random.Random) -> list[Any]:
    return cases if count >= len(cases) else chooser.sample(cases, count)


def resume(tally: Tally, folder: Path, what: str, *, same: bool = True) -> None:
    """Resume a training in ``folder/a``: it is refused in lines, or works, and if ``same`` as an undisturbed one."""
    tally.trials += 1
    training = Training(folder, ALONE, ["--resume"])
    code, text = training.wait()[0], training.errors()
    if code not in (0, 1, 2) or not are_lines(text, "train.py", code):
        tally.fail(f"{what}: code {code}: {text[-300:]}")
    elif code == 0 and same and training.digests() != undisturbed(ALONE).digests:
        tally.fail(f"{what}: resumed, but differs")
    else:
        tally.end("refused in one line" if code else "resumed, 0 bits differ" if same else "resumed")


def export(tally: Tally, folder: Path, what: str, *, needed: bool) -> None:
    """Export the run in ``folder/a``; it is refused in lines, or works unless what was damaged is ``needed``."""
    tally.trials += 1
    process = Forked("push_to_hub.py", [folder / "a", "--repo", "me/x", "--dry-run"], folder)
    code, text = process.wait(), process.errors()
    if code not in (0, 1, 2) or not are_lines(text, "push_to_hub.py", code):
        tally.fail(f"{what}: code {code}: {text[-300:]}")
    elif code == 0 and needed:
        tally.fail(f"{what}: exported all the same")
    else:
        tally.end("refused in one line" if code else "exported")
