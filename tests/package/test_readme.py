"""The README's code runs as it stands: Python blocks, and the launcher's line on a stand-in for timm's script."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import run_command
from tests.support.paths import ROOT
from timm_patchup import list_methods
from timm_patchup.methods import method_parameters
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.compose import list_benchmarks

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
LAUNCH = [code for language, code in BLOCKS if language == "bash" and code.startswith("timm-patchup ")]


def test_the_ways_in_are_all_there() -> None:
    assert len(PYTHON) == 2
    assert len(LAUNCH) == 1


@pytest.mark.parametrize("code", PYTHON)
def test_python_blocks_run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", LAUNCH)
def test_launcher_line_runs(line: str, train_script: Path, tmp_path: Path) -> None:
    command, path, *flags = shlex.split(line)
    assert path == "path/to/train.py"
    done = run_command(
        Path(sys.executable).with_name(command), train_script, *flags, "--output", tmp_path / "args.yaml"
    )
    assert done.returncode == 0, done.stderr
    assert "MixTask" in done.stdout


def test_knobs_table_has_the_defaults_of_the_code() -> None:
    knobs = README.split("## Knobs\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) \|", knobs, flags=re.MULTILINE)
    hard, soft = (method_parameters(name) for name in ("hard_patchup", "soft_patchup"))
    documented = {name for name, _, _ in rows}
    assert documented == set(hard) - {"mode", "num_classes"}
    for name, hard_text, soft_text in rows:
        for parameters, text in ((hard, hard_text), (soft, soft_text)):
            default = parameters[name].default
            expected = str(default) if isinstance(default, (int, float)) else f"`{default!r}`".replace("'", '"')
            assert text in (expected, "-"), name


def test_methods_are_named() -> None:
    for name in list_methods():
        assert f"`{name}`" in README


def recipe_table() -> str:
    """Return the table of benchmarks as the README has it."""
    lines = ["| benchmark | data | model | epochs | batch | learning rate |", "| --- | --- | --- | ---: | ---: | --- |"]
    for name in list_benchmarks():
        recipe = load_recipe(f"{name}_none")
        steps = {
            "multistep": f", x {recipe.decay_rate:g} after {', '.join(map(str, recipe.decay_milestones))}",
            "step": f", x {recipe.decay_rate:g} every {recipe.decay_epochs:g}",
            "cosine": ", cosine",
        }[recipe.sched]
        data = recipe.dataset.removeprefix("hfds/")
        scarce = f", {recipe.train_per_class} a class" if recipe.train_per_class else ""
        cells = (f"`{name}`", data + scarce, recipe.model, recipe.epochs, recipe.batch_size, f"{recipe.lr:g}{steps}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def test_recipe_table_is_that_of_the_recipes() -> None:
    table = README.split("<!-- recipes:begin -->\n")[1].split("\n<!-- recipes:end -->")[0]
    assert table == recipe_table()


def test_recipes_that_are_named_exist() -> None:
    named = set(re.findall(r"--recipe (\w+)(?![\w/.])", README)) - {"NAME"}
    assert len(named) >= 3
    for name in named:
        load_recipe(name)


def test_set_up_commands_differ_only_in_what_they_run() -> None:
    """The train command itself is run in a new virtual environment by hand; here its parts are checked."""
    command = README.split("<!-- train-command -->\n```bash\n")[1].split("\n```")[0]
    set_up, _, launched = command.rpartition(" && ")
    assert set_up == "python3 -m venv .venv && .venv/bin/pip install -e ."
    assert launched == ".venv/bin/accelerate launch scripts/train.py"
    assert (ROOT / "scripts" / "train.py").is_file()
