"""Datasets with columns: in the layout of the Hub, or a table beside the images."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.datasets_on_disk import numbered_image, write_parquet
from timm_patchup.data.loader import load_data
from timm_patchup.errors import DataError

from .discovered import found, keys


@pytest.mark.parametrize("name", ["image", "img"])
def test_a_dataset_in_the_layout_of_the_hub(tmp_path: Path, name: str) -> None:
    folder = write_parquet(tmp_path / "photos", {"train": 30, "test": 10}, input_key=name, target_key="fine_label")
    recipe = found(folder)
    assert (recipe.input_key, recipe.target_key, recipe.num_classes) == (name, "fine_label", 10)
    assert keys(recipe) == ("train", "test", None, 0.1, 0.0)
    assert len(load_data(recipe, folder).test) == 10


def test_labels_in_a_table_beside_the_images(tmp_path: Path) -> None:
    """As ``datasets`` reads them: metadata.csv in each split, without class folders."""
    for split, count in (("train", 20), ("test", 6)):
        folder = tmp_path / "photos" / split
        folder.mkdir(parents=True)
        rows = [f"{number}.png,{number % 3}" for number in range(count)]
        for number in range(count):
            numbered_image(number).save(folder / f"{number}.png")
        (folder / "metadata.csv").write_text("\n".join(["file_name,label", *rows]))
    recipe = found(tmp_path / "photos")
    assert (recipe.num_classes, *keys(recipe)) == (3, "train", "test", None, 0.1, 0.0)
    data = load_data(recipe, tmp_path / "photos")
    assert (len(data.train) + len(data.val), len(data.test)) == (20, 6)


def test_classes_that_are_text(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    numbered_image(1).save(folder / "a.png")
    (folder / "metadata.csv").write_text("file_name,kind\na.png,dress\n")
    with pytest.raises(
        DataError, match=r"^no column has class numbers, there is only image, kind: .*class_encode_column"
    ):
        found(folder)


def _write_labels(folder: Path, labels: np.ndarray) -> Path:
    """Write a train split of tiny images with plain numbers as labels."""
    image = {"bytes": b"never decoded", "path": None}
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    info = '{"info": {"features": {"image": {"_type": "Image"}, "id": {"dtype": "int64", "_type": "Value"}}}}'
    schema = pa.schema([("image", kind), ("id", pa.int64())], metadata={"huggingface": info})
    (folder / "data").mkdir(parents=True)
    images = pa.array([image], type=kind).take(pa.array(np.zeros(len(labels), dtype=np.int64)))
    pq.write_table(pa.table({"image": images, "id": labels}, schema=schema), folder / "data" / "train-0.parquet")
    return folder


def test_a_column_that_numbers_the_images_is_no_class(tmp_path: Path) -> None:
    folder = _write_labels(tmp_path / "photos", np.arange(2_000))
    with pytest.raises(
        DataError, match=r"column 'id' has 2,000 different values for 2,000 images, which are no classes"
    ):
        found(folder)


def test_plain_numbers_are_classes(tmp_path: Path) -> None:
    assert found(_write_labels(tmp_path / "photos", np.arange(40) % 4)).num_classes == 4
    with pytest.raises(DataError, match=r"column 'id' has one class"):
        found(_write_labels(tmp_path / "other", np.zeros(40, dtype=np.int64)))
