"""Import attempts: files that name a module with a method, which is imported only if the user says so."""

import random
import shutil
from pathlib import Path

from ..forked import Forked, are_lines
from ..tally import Tally
from ..trials import Training, scratch
from ..victims import Victims
from .aliases import SCRIPT
from .damage import ALONE

ALLOW = "--allow-imports"
STUDY = "title: x\ngroups: [{benchmarks: [fashion_mini], methods: [NAME]}]\n"
RECIPE = "train.py --recipe recipe.yaml"
# What is written where, and the command that reads it; NAME is the method in the planted module.
FILES: list[tuple[str, str, str]] = [
    ("recipe.yaml", "include: [fashion_mini_hard_patchup]\nmix: NAME\n", f"{RECIPE} --show-recipe"),
    ("recipe.yaml", "include: [fashion_mini_hard_patchup]\nmix: NAME\n", f"{RECIPE} --epochs 1"),
    ("recipe.yaml", "include: [fashion_mini_hard_patchup]\nmix: [hard_patchup, NAME]\n", f"{RECIPE} --show-recipe"),
    ("deeper.yaml", "include: [fashion_mini_hard_patchup]\nmix: NAME\n", f"{RECIPE} --show-recipe"),
    ("a/recipe.yaml", "", "train.py --output . --experiment a --resume"),
    ("c.yaml", "mix: NAME\n", "timm-patchup script.py -c c.yaml"),
    ("c.yaml", "recipe: recipe.yaml\n", "timm-patchup script.py -c c.yaml"),
    ("study.yaml", STUDY, "study.py --study study.yaml"),
]
READ_ONLY = ["evaluate.py --model a --limit 20", "push_to_hub.py a --repo me/x --dry-run"]


def trials(count: int, chooser: random.Random) -> list[Tally]:
    tally = Tally("import attempt")
    with scratch() as run:
        assert Training(run, ALONE).wait() == [0]
        calls = [*FILES, *(("a/recipe.yaml", "", call) for call in READ_ONLY)]
        for number in range(count):
            name, text, call = calls[number % len(calls)]
            with scratch() as folder:
                _attempt(tally, run, folder, name, text, call)
    return [tally]


def _attempt(tally: Tally, run: Path, folder: Path, name: str, text: str, call: str) -> None:
    tally.trials += 1
    shutil.copytree(run / "a", folder / "a")
    victims = Victims(folder / "elsewhere")
    method = victims.write_module(folder)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "recipe.yaml").write_text(
        f"include: [{'deeper.yaml' if name == 'deeper.yaml' else 'fashion_mini_hard_patchup'}]\n"
    )
    if name == "a/recipe.yaml":
        text = (folder / name).read_text().replace("mix: hard_patchup", "mix: NAME")
        (folder / "a" / "results.json").unlink() if "--resume" in call else None
    if text.startswith("recipe:"):
        (folder / "recipe.yaml").write_text(f"include: [fashion_mini_hard_patchup]\nmix: {method}\n")
    (folder / name).write_text(text.replace("NAME", method))
    command, *words = call.split()
    process = Forked(command, words, folder)
    code, errors = process.wait(), process.errors()
    if harm := victims.harm():
        tally.fail(f"{call} of {text!r}: {harm}: {errors[-200:]!r}")
    elif code is None or not are_lines(errors, command, code):
        tally.fail(f"{call} of {text!r}: code {code}: {errors[-300:]!r}")
    elif command == "train.py" and (code != 2 or ALLOW not in errors):
        tally.fail(f"{call} of {text!r}: code {code} without {ALLOW}: {errors[-300:]!r}")
    else:
        tally.end("nothing imported")
