"""Terminal escapes in names of classes, files and folders from elsewhere: nothing of them reaches the terminal raw."""

import json
import random
from pathlib import Path

import numpy as np
from PIL import Image

from ..forked import Forked
from ..tally import Tally
from ..trials import Training, scratch
from .damage import ALONE

# Clear the screen, colours, a title, a line break, a return, a bell, a reversed reading order, an 8-bit escape.
ESCAPES = ["\x1b[2J", "\x1b[31m", "\x1b]0;x\x07", "a\nb", "a\rb", "\x07", "\u202e", "\x9b2J", "\x7f", "\u2028", "\x0b"]
FORMATS = ["table", "csv", "jsonl"]
IMAGES = 3


def trials(count: int, chooser: random.Random) -> list[Tally]:
    tally = Tally("terminal escapes in names")
    with scratch() as folder:
        assert Training(folder, ALONE).wait() == [0]
        process = Forked("push_to_hub.py", [folder / "a", "--repo", "me/x", "--dry-run"], folder)
        assert process.wait() == 0, process.errors()
        export = folder / "a" / "hub"
        for number in range(count):
            with scratch() as place:
                if number % 4 == 3:
                    _refuse_data(tally, place, chooser)
                else:
                    _predict(tally, export, place, FORMATS[number % 4], chooser)
    return [tally]


def _predict(tally: Tally, export: Path, place: Path, style: str, chooser: random.Random) -> None:
    config = json.loads((export / "config.json").read_text())
    config["label_names"] = [f"{chooser.choice(ESCAPES)} class {number}" for number in range(10)]
    (export / "config.json").write_text(json.dumps(config))
    for number in range(IMAGES):
        path = place / f"{chooser.choice(ESCAPES)}{number}.png"
        Image.fromarray(np.full((32, 32, 3), 80 * number, np.uint8)).save(path)
    (place / f"{chooser.choice(ESCAPES)}broken.png").write_bytes(b"no image")
    process = Forked("predict.py", ["--model", export, place, "--format", style, "--threads", "1"], place)
    code = process.wait()
    _count(tally, process, style, right=code == 1, lines=IMAGES + (style == "csv"))


def _refuse_data(tally: Tally, place: Path, chooser: random.Random) -> None:
    """Train on a folder of which one class has no images: its name is in the error."""
    for number in range(3):
        (place / "data" / "train" / f"{chooser.choice(ESCAPES)} class {number}").mkdir(parents=True)
    for path in sorted((place / "data" / "train").iterdir())[1:]:
        Image.new("RGB", (32, 32)).save(path / "1.png")
    words = ["--recipe", "finetune_hard_patchup", "--data-dir", place / "data", "--output", place / "output"]
    process = Forked("train.py", words, place)
    code = process.wait()
    _count(tally, process, "train.py", right=code == 2, lines=0)


def _count(tally: Tally, process: Forked, what: str, *, right: bool, lines: int) -> None:
    tally.trials += 1
    printed, errors = process.output(), process.errors()
    raw = sorted({character for character in printed + errors if not character.isprintable()} - {"\n"})
    if raw or not right or printed.count("\n") != lines:
        tally.fail(f"{what}: code {process.code}, raw {raw}, {printed.count(chr(10))} lines: {errors[-200:]!r}")
    else:
        tally.end("printed as escapes, one line each")
