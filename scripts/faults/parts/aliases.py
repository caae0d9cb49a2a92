"""Alias bombs: small YAML files that expand to billions of values, or contain themselves, wherever YAML is read."""

import random
from itertools import pairwise
from pathlib import Path

from ..forked import Forked, are_lines
from ..tally import Tally
from ..trials import scratch

SECONDS = 60.0
LONGEST = 2000  # characters of a line on standard error
SCRIPT = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-c", "--config")
parser.add_argument("--model", default="test_resnet")
parser.parse_args()
"""
# A file, the command that reads it, and its words.
READERS = [
    ("recipe.yaml", "train.py", "--recipe recipe.yaml"),
    ("recipe.yaml", "train.py", "--recipe recipe.yaml --show-recipe"),
    ("a/recipe.yaml", "train.py", "--output . --experiment a --resume"),
    ("study.yaml", "study.py", "--study study.yaml --dry-run"),
    ("a/recipe.yaml", "evaluate.py", "--model a"),
    ("a/recipe.yaml", "push_to_hub.py", "a --repo me/x --dry-run"),
    ("c.yaml", "timm-patchup", "train.py --mix hard_patchup -c c.yaml"),
]
KEYS = ["model_kwargs", "mix", "mix_sites", "input_size", "include", "lr", "title", "groups", "opt_betas", "", "nosuch"]


def bomb(key: str, chooser: random.Random) -> str:
    """Return YAML whose aliases expand to a great many values, or contain themselves."""
    depth, width = chooser.choice([(8, 9), (12, 9), (40, 2), (3, 200)])
    kind = chooser.choice(["lists", "mappings", "itself", "in itself", "keys", "merge"])
    names = [f"a{level}" for level in range(depth + 1)]
    lines = [f"{names[0]}: &{names[0]} {'{x: 1}' if kind in ('mappings', 'merge') else '[x]'}"]
    if kind == "itself":
        return f"{key or 'lr'}: &a [*a, *a]\n"
    if kind == "in itself":
        return f"{key or 'lr'}: &a {{b: {{c: *a}}}}\n"
    for before, name in pairwise(names):
        if kind in ("lists", "keys"):
            inside = f"[{', '.join([f'*{before}'] * width)}]"
        elif kind == "mappings":
            inside = "{" + ", ".join(f"k{n}: *{before}" for n in range(width)) + "}"
        else:
            inside = "{<<: [" + ", ".join([f"*{before}"] * width) + "]}"
        lines.append(f"{name}: &{name} {inside}")
    end = f"{{? *{names[-1]} : 1}}" if kind == "keys" else f"*{names[-1]}"
    return "\n".join([*lines, f"{key}: {end}" if key else f"lr: {end}"]) + "\n"


def trials(count: int, chooser: random.Random) -> list[Tally]:
    tally = Tally("alias bomb")
    for number in range(count):
        name, command, words = READERS[number % len(READERS)]
        text = bomb(chooser.choice(KEYS), chooser)
        with scratch() as folder:
            (folder / "a" / "checkpoints").mkdir(parents=True)
            (folder / "train.py").write_text(SCRIPT)
            (folder / name).write_text(text)
            _read(tally, command, words.split(), folder, f"{command} {words}: {text[-60:]!r}")
    return [tally]


def _read(tally: Tally, command: str, words: list[str], folder: Path, what: str) -> None:
    tally.trials += 1
    process = Forked(command, words, folder)
    code, text = process.wait(SECONDS), process.errors()
    if code not in (1, 2) or not are_lines(text, command, code):
        tally.fail(f"{what}: code {code}: {text[-300:]!r}")
    elif max(map(len, text.splitlines())) > LONGEST:
        tally.fail(f"{what}: a line of {max(map(len, text.splitlines()))} characters")
    else:
        tally.end("refused in lines")
