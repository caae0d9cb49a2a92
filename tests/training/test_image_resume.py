"""Augmented photos: a run with loader processes that is killed inside an epoch, and one on two processes, see the same
images as one that is left alone.
"""

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.datasets_on_disk import write_image_folder
from tests.support.training import command, digests, environment, kill_tree, launch, train_here

UPDATES = 6  # per epoch
# Everything that is drawn per image, in loader processes or on the device; a net without statistics of a batch.
FLAGS = [
    "--recipe",
    "fashion_mini_none",
    "--num-classes",
    3,
    "--val-split",
    "test",
    "--val-fraction",
    0,
    "--threads",
    1,
]
FLAGS += ["--crop-padding", "none", "--color-jitter", 0.4, "--lighting", 0.1, "--reprob", 0.5, "--vflip", 0.5]
FLAGS += ["--model", "test_convnext", "--lr", 0.01, "--batch-size", 10, "--workers", 2, "--val-interval", 20]


@pytest.fixture
def flags(tmp_path: Path) -> list[object]:
    folder = write_image_folder(tmp_path / "photos", {"train": 10 * UPDATES, "test": 9})
    return [*FLAGS, "--data-dir", folder, "--output", tmp_path]


def newest(folder: Path) -> int:
    return max((int(path.name[-8:]) for path in (folder / "checkpoints").glob("step-*")), default=0)


def test_killed_inside_an_epoch_it_sees_the_same_images(tmp_path: Path, flags: list[object]) -> None:
    flags += ["--epochs", 5, "--checkpoint-steps", 1, "--checkpoint-hist", 99]
    reference = train_here(*flags, "--experiment", "whole")
    assert reference.code == 0, reference.err
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        command(*flags, "--experiment", "killed"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    try:
        end = time.monotonic() + 180
        while newest(killed) < UPDATES + 2:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.005)
    finally:
        kill_tree(process)
    (killed / "results.json").unlink(missing_ok=True)
    while newest(killed) % UPDATES == 0 or newest(killed) > 4 * UPDATES:  # the end of an epoch, or of the run
        shutil.rmtree(killed / "checkpoints" / f"step-{newest(killed):08d}")
    ended = train_here("--resume", killed, "--threads", 1)
    assert ended.code == 0, ended.err
    assert re.search(r"resumed from step-\d+: epoch [2345], update [1-5]\n", ended.out), ended.out
    first, second = digests(tmp_path / "whole"), digests(killed)
    for name in ("model.safetensors", "summary.csv", "results.json"):
        assert second[name] == first[name], name


def test_two_processes_see_the_images_of_one(tmp_path: Path, flags: list[object]) -> None:
    """The same weights except for rounding, with which no other draw of colours or rectangles would agree."""
    flags += ["--epochs", 2]
    assert train_here(*flags, "--experiment", "one").code == 0
    two = launch(*flags, "--experiment", "two", processes=2)
    assert two.code == 0, two.err
    assert train_here(*flags, "--experiment", "other", "--seed", 1).code == 0
    one, both, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two", "other"))
    for key in one:
        torch.testing.assert_close(both[key], one[key], rtol=1e-3, atol=1e-5)
    assert not all(torch.allclose(other[key], one[key], rtol=1e-3, atol=1e-5) for key in one)
