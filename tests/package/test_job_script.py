"""The job script for Slurm in recipes/README.md, run by bash with stand-ins for the training and for scontrol."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.paths import ROOT

# Ends as scripts/train.py does: with code 143 after SIGTERM, or with its results.
TRAINING = """#!/bin/bash
echo "$@" > arguments
trap 'sleep 0.2; exit 143' TERM
touch started
until [ -e finish ]; do sleep 0.02; done
mkdir -p output/night
touch output/night/results.json
"""
SCONTROL = """#!/bin/bash
echo "$@" >> requeued
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The job script, in a folder with the stand-ins in front of the path."""
    blocks = re.findall(
        r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", (ROOT / "recipes" / "README.md").read_text(), re.DOTALL
    )
    assert len(blocks) == 1
    (tmp_path / "bin").mkdir()
    for name, text in (("job", blocks[0]), ("bin/python", TRAINING), ("bin/scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path / "job"


def start(script: Path) -> subprocess.Popen:
    path = f"{script.parent / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SLURM_JOB_ID": "42"}
    process = subprocess.Popen(["bash", str(script)], cwd=script.parent, env=environment)
    end = time.monotonic() + 60
    while not (script.parent / "started").exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


def test_it_is_bash_and_its_flags_are_those_of_the_command(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    process = start(script)
    (script.parent / "finish").touch()
    assert process.wait(60) == 0
    program, *words = (script.parent / "arguments").read_text().split()
    assert (ROOT / program).is_file()
    from timm_patchup.cli.train import make_parser

    given, problems = make_parser(words).read(words)
    assert not problems
    assert given.resume is True
    assert f"output/{given.experiment}/results.json" in script.read_text(), "the condition names the same run"


@pytest.mark.parametrize("again", [False, True], ids=["once", "and at the limit"])
def test_the_warning_before_the_limit_ends_in_another_turn(script: Path, again: bool) -> None:
    process = start(script)
    process.send_signal(signal.SIGUSR1)
    if again:
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert (script.parent / "requeued").read_text() == "requeue 42\n"


def test_a_cancelled_job_has_no_other_turn(script: Path) -> None:
    process = start(script)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert not (script.parent / "requeued").exists()


def test_a_finished_run_has_no_other_turn(script: Path) -> None:
    (script.parent / "bin" / "python").write_text(TRAINING.replace("sleep 0.2; exit 143", "touch finish"))
    process = start(script)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 0
    assert not (script.parent / "requeued").exists()
