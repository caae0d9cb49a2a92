"""The README's code runs as it stands: Python blocks, and the launcher's line on a stand-in for timm's script."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from timm_patchup import list_methods
from timm_patchup.methods import method_parameters

from .test_launch import run, script  # noqa: F401  (a fixture)

README = (Path(__file__).parents[1] / "README.md").read_text()
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
def test_launcher_line_runs(line: str, script: Path, tmp_path: Path) -> None:  # noqa: F811
    command, path, *flags = shlex.split(line)
    assert path == "path/to/train.py"
    done = run(Path(sys.executable).with_name(command), script, *flags, "--output", tmp_path / "args.yaml")
    assert done.returncode == 0, done.stderr
    assert "MixTask" in done.stdout


def test_knobs_table_has_the_defaults_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) \|", README, flags=re.MULTILINE)
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
