"""Sources: folders, configurations and the Hub, and one error line for data that does not fit."""

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from PIL import Image

from tests.support.datasets_on_disk import numbered_image, write_image_folder, write_parquet
from timm_patchup.data.loader import evaluation_loader, load_data
from timm_patchup.data.source import open_source
from timm_patchup.errors import DataError
from timm_patchup.recipe.parts import DataSpec

from .small_recipe import small


def test_image_folders_in_timms_order(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "d", {"train": 30, "val": 9})
    recipe = small(num_classes=3, val_split="validation", crop_padding=None, val_fraction=0.1)
    data = load_data(recipe, folder)
    assert data.class_names == ["n000", "n001", "n002"]
    assert (len(data.train), len(data.val), len(data.test)) == (27, 3, 9)
    images, labels = next(iter(evaluation_loader(data.test, recipe, rank=0, world_size=1)))
    assert images.shape == (9, 3, 32, 32)
    assert sorted(labels.tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_configuration_is_a_folder_or_in_the_readme(tmp_path: Path) -> None:
    recipe = small(dataset="hfds/ufldl-stanford/svhn", dataset_config="cropped_digits")
    inner = write_parquet(tmp_path / "a" / "cropped_digits", {"train": 20, "test": 20})
    assert len(open_source(DataSpec.of(recipe), "train", inner.parent).labels) == 20
    folder = write_parquet(tmp_path / "b", {"train": 30, "test": 20})
    (folder / "data").rename(folder / "cropped_digits")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: cropped_digits\n  data_files:\n"
        "  - split: train\n    path: cropped_digits/train-*\n"
        "  - split: test\n    path: cropped_digits/test-*\n- config_name: full_numbers\n  data_files: nothing-*\n---\n"
    )
    assert len(open_source(DataSpec.of(recipe), "train", folder).labels) == 30


def test_single_splits_and_unusual_split_names(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"valid": 20})
    recipe = small(dataset="hfds/zh-plus/tiny-imagenet")
    assert len(open_source(DataSpec.of(recipe), "valid", folder).labels) == 20, "datasets renames it to validation"
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n"
        "  - split: valid\n    path: data/valid-*\n---\n"
    )
    source = open_source(DataSpec.of(recipe), "valid", folder)
    assert len(source.labels) == 20, "the README lists files that do not exist"
    assert source.image(3).size == (32, 32)
    for number in (1, 2):
        with pytest.raises(DataError, match=r"d: cannot read split 'test': |d contains no dataset"):
            open_source(DataSpec.of(recipe), "test", folder)
        if number == 1:
            (folder / "data" / "test-00000-of-00001.parquet").write_bytes(b"no parquet")


def test_of_several_configurations_one_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "svhn"
    for name, count in (("cropped_digits", 20), ("full_numbers", 30)):
        write_parquet(folder / name, {"test": count})
        (folder / name / "data").rename(folder / name / "moved")
    lines = [
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/moved/train-*\n"
        f"  - split: test\n    path: {name}/moved/test-*\n"
        for name in ("cropped_digits", "full_numbers")
    ]
    (folder / "README.md").write_text("---\nconfigs:\n" + "".join(lines) + "---\n")
    recipe = small(dataset="hfds/ufldl-stanford/svhn", dataset_config="cropped_digits")
    assert len(open_source(DataSpec.of(recipe), "test", folder).labels) == 20


def test_gray_images_become_rgb_and_are_resized(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 40, "test": 10}, size=28, mode="L")
    data = load_data(small(), folder)
    expected = numbered_image(1000, size=28, mode="L").convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
    assert np.array_equal(data.test.images[0].permute(1, 2, 0).numpy(), np.asarray(expected))
    grey = load_data(small(input_size=[1, 28, 28], mean=[0.5], std=[0.5]), folder)
    assert grey.test.images.shape == (10, 1, 28, 28)


@pytest.mark.parametrize(
    ("written", "overrides", "message"),
    [
        ({}, {"num_classes": 5}, r"split 'train' has the label 9, but num_classes is 5"),
        ({}, {"num_classes": 20}, r"the data has 10 classes, but num_classes is 20"),
        ({}, {"input_key": "img"}, r"input_key: the dataset has no column 'img', only image, label"),
        ({}, {"target_key": "y"}, r"target_key: the dataset has no column 'y', only image, label"),
        ({}, {"val_split": "dev"}, r"cannot read split 'dev': Unknown split"),
        ({"unlabelled": True}, {}, r"split 'test' has the label -1, so it is not labelled"),
        ({}, {"batch_size": 50}, r"batch_size 50 is larger than the training set of 36 samples"),
        ({}, {"val_fraction": 0.001}, r"val_fraction 0.001 of 40 samples is less than one"),
        ({}, {"train_per_class": 9}, r"train_per_class: cannot take 9 images per class"),
    ],
)
def test_data_that_does_not_fit(
    tmp_path: Path, written: dict[str, bool], overrides: dict[str, object], message: str
) -> None:
    folder = write_parquet(tmp_path / "d", {"train": 40, "test": 20}, **written)
    with pytest.raises(DataError, match=message) as caught:
        load_data(small(**overrides), folder)
    assert "\n" not in str(caught.value)


def test_folders_without_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        open_source(DataSpec.of(small()), "train", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"contains no dataset|cannot read split"):
        open_source(DataSpec.of(small()), "train", tmp_path)
    with pytest.raises(DataError, match="dataset must be fashion_mini or hfds/OWNER/NAME"):
        open_source(DataSpec.of(small(dataset="cifar10")), "train")


class _Hub(BaseHTTPRequestHandler):
    """A Hub with a single dataset, which is gated."""

    def do_GET(self) -> None:
        gated = "gated" in self.path
        self.send_response(403 if gated else 404)
        self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        self.send_header("X-Error-Message", "Access to this dataset is restricted" if gated else "Repository not found")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("dataset", "offline", "code", "message"),
    [
        ("hfds/someone/gated", False, 2, "is gated: accept its terms at"),
        ("hfds/someone/missing", False, 2, "no dataset someone/missing on the Hub"),
        ("hfds/someone/missing", True, 1, "is not cached and the Hub cannot be reached"),
    ],
)
def test_datasets_out_of_reach(tmp_path: Path, dataset: str, offline: bool, code: int, message: str) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        environment = os.environ | {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": str(int(offline)),
        }
        command = [
            sys.executable,
            "-m",
            "timm_patchup.training",
            "--dataset",
            dataset,
            "--output",
            str(tmp_path / "out"),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == code
    assert message in done.stderr
    assert "--data-dir" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
