"""Fine-tuning on a dataset of the Hub by its name: the real command against a local Hub, in the layouts people use."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import save_file

from tests.hub.hub_client import environment
from tests.hub.hub_server import Hub
from tests.support.datasets_on_disk import write_image_folder, write_parquet
from tests.support.training import Ended, train_here

MODEL = "test_resnet.r160_in1k"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        yield running


@pytest.fixture(autouse=True)
def weights(tmp_path: Path) -> None:
    torch.manual_seed(1)
    save_file(timm.create_model(MODEL).state_dict(), tmp_path / "weights.safetensors")


def publish(hub: Hub, folder: Path) -> None:
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub.add("datasets/USER/photos", files)


def tiny(tmp_path: Path) -> list[object]:
    """Return the flags of a short run of the recipe on a tiny model."""
    flags: list[object] = ["--recipe", "finetune_hard_patchup", "--dataset", "hfds/USER/photos", "--model", MODEL]
    flags += ["--pretrained-path", tmp_path / "weights.safetensors", "--workers", 0, "--threads", 1, "--epochs", 1]
    return [*flags, "--batch-size", 10, "--input-size", 3, 32, 32, "--output", tmp_path / "runs"]


def finetune(hub: Hub, tmp_path: Path, *flags: object) -> Ended:
    """Run the command in a process that has this Hub only."""
    words = [sys.executable, "-m", "timm_patchup.training", *tiny(tmp_path), *flags]
    done = subprocess.run(
        [str(word) for word in words],
        env=environment(hub.endpoint, tmp_path / "cache"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def parquet(folder: Path) -> list[str]:
    write_parquet(folder, {"train": 40, "test": 12}, classes=4, input_key="img", target_key="fine_label")
    return [f"class {number}" for number in range(4)]


def image_folder(folder: Path) -> list[str]:
    write_image_folder(folder, {"train": 40, "test": 12}, classes=4)
    return [f"n{number:03d}" for number in range(4)]


@pytest.mark.parametrize("layout", [parquet, image_folder])
def test_a_dataset_by_its_name(layout: object, hub: Hub, tmp_path: Path) -> None:
    names = layout(tmp_path / "photos")  # type: ignore[operator]
    publish(hub, tmp_path / "photos")
    ended = finetune(hub, tmp_path)
    assert ended.code == 0, ended.err
    assert f"inferred: 4 classes ({', '.join(names)}) from USER/photos; tested on test; epoch chosen on" in ended.out
    run = tmp_path / "runs" / "finetune_hard_patchup"
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    assert (recipe["dataset"], recipe["num_classes"], recipe["val_split"]) == ("hfds/USER/photos", 4, "test")
    assert (recipe["input_key"], recipe["target_key"]) == (
        ("img", "fine_label") if layout is parquet else ("image", "label")
    )
    results = json.loads((run / "results.json").read_text())
    assert results["class_names"] == names
    assert [sum(row) for row in results["confusion"]] == [3, 3, 3, 3]
    if layout is parquet:  # a downloaded copy, given as a folder, is the same dataset
        copied = train_here(*tiny(tmp_path), "--data-dir", tmp_path / "photos", "--experiment", "copy")
        assert copied.code == 0, copied.err
        assert json.loads((tmp_path / "runs" / "copy" / "results.json").read_text()) == results
    # Everything is cached now: the run can be resumed without the Hub.
    hub.failures |= {"info": "drop", "resolve": "drop", "tree": "drop"}
    (run / "results.json").unlink()
    again = finetune(hub, tmp_path, "--resume")
    assert again.code == 0, again.err
    assert json.loads((run / "results.json").read_text())["test"] == results["test"]


def test_a_name_that_the_hub_does_not_have(hub: Hub, tmp_path: Path) -> None:
    ended = finetune(hub, tmp_path)
    assert ended.code == 2
    assert ended.err.count("\n") == 1, ended.err
    assert "USER/photos" in ended.err
    assert not (tmp_path / "runs").exists()
