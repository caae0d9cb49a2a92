"""The embedded dataset: its contents, loading it offline, and that its script is reproducible."""

import gzip
import hashlib
import importlib.util
import os
import re
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import datasets
import numpy as np
import pytest

from tests.support.paths import ROOT
from timm_patchup.data.embedded import CLASSES, PER_CLASS, fashion_mini_dir, fashion_mini_file


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> datasets.DatasetDict:
    return datasets.load_dataset(str(fashion_mini_dir()), cache_dir=str(tmp_path_factory.mktemp("cache")))


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_fashion_mini", ROOT / "scripts" / "make_fashion_mini.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_splits_are_stratified(data: datasets.DatasetDict) -> None:
    assert {split: len(rows) for split, rows in data.items()} == {"train": 1000, "test": 2000}
    for split, rows in data.items():
        assert Counter(rows["label"]) == dict.fromkeys(range(10), PER_CLASS[split])


def test_first_rows_are_balanced(data: datasets.DatasetDict) -> None:
    for rows in data.values():
        assert Counter(rows[:50]["label"]) == dict.fromkeys(range(10), 5)


def test_features(data: datasets.DatasetDict) -> None:
    for rows in data.values():
        assert isinstance(rows.features["image"], datasets.Image)
        assert rows.features["label"].names == list(CLASSES)
    assert CLASSES[0] == "T-shirt/top"
    assert CLASSES[9] == "Ankle boot"


def test_images_are_gray_28_pixel_pngs_with_content(data: datasets.DatasetDict) -> None:
    for rows in data.values():
        kinds = {(image.format, image.mode, image.size) for image in rows["image"]}
        assert kinds == {("PNG", "L", (28, 28))}
        assert min(np.asarray(image).std() for image in rows["image"]) > 5.0


def test_no_image_occurs_twice(data: datasets.DatasetDict) -> None:
    pixels = {split: {image.tobytes() for image in rows["image"]} for split, rows in data.items()}
    assert [len(images) for images in pixels.values()] == [1000, 2000]
    assert not pixels["train"] & pixels["test"]


def test_files_are_small() -> None:
    sizes = [path.stat().st_size for path in fashion_mini_dir().rglob("*") if path.is_file()]
    assert len(sizes) == 4
    assert sum(sizes) < 2_000_000


def test_card_states_the_checksums() -> None:
    card = (fashion_mini_dir() / "README.md").read_text()
    for split in PER_CLASS:
        assert hashlib.sha256(fashion_mini_file(split).read_bytes()).hexdigest() in card
    assert re.search(r"^license: mit$", card, re.MULTILINE)
    assert "Zalando" in (fashion_mini_dir() / "LICENSE").read_text()


def test_loads_offline_in_a_fresh_process(tmp_path: Path) -> None:
    # datasets reads HF_HUB_OFFLINE at import, and the test process has already imported it.
    code = (
        "import sys; from timm_patchup.data.embedded import fashion_mini_dir; assert 'datasets' not in sys.modules\n"
        "import datasets; print(len(datasets.load_dataset(str(fashion_mini_dir()), split='test')))"
    )
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "HF_DATASETS_CACHE": str(tmp_path / "d")}
    run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["2000"]
    assert (tmp_path / "d").is_dir()


def write_source(folder: Path) -> None:
    """Write four idx files of random images, 250 per class."""
    rng = np.random.default_rng(0)
    for prefix in ("train", "t10k"):
        images = rng.integers(0, 256, (2500, 28, 28), dtype=np.uint8)
        labels = rng.permutation(np.arange(2500) % 10).astype(np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{prefix}-{name}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))


def test_script_is_reproducible_and_keeps_pixels(tmp_path: Path) -> None:
    script = load_script()
    write_source(tmp_path)
    for output in ("first", "second"):
        script.main([str(tmp_path), str(tmp_path / output)])
    for split in PER_CLASS:
        first, second = (tmp_path / out / "data" / fashion_mini_file(split).name for out in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()
    rows = datasets.load_dataset(str(tmp_path / "first"), split="test", cache_dir=str(tmp_path / "cache"))
    images = script.read_idx(tmp_path / "t10k-images-idx3-ubyte.gz", 3)
    labels = script.read_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", 1)
    paths = rows.cast_column("image", datasets.Image(decode=False))["image"]
    for taken, label, source in zip(rows["image"], rows["label"], paths):
        row = int(source["path"].removeprefix("t10k-").removesuffix(".png"))
        assert np.array_equal(np.asarray(taken), images[row])
        assert label == labels[row]
    assert Counter(rows["label"]) == dict.fromkeys(range(10), 200)
    assert Counter(rows[:50]["label"]) == dict.fromkeys(range(10), 5)


def test_script_refuses_a_wrong_source_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = load_script()
    write_source(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes((tmp_path / "train-images-idx3-ubyte.gz").read_bytes())
    for source in (tmp_path / "missing", tmp_path):
        with pytest.raises(SystemExit) as stop:
            script.main([str(source), str(tmp_path / "out")])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert str(source) in error
