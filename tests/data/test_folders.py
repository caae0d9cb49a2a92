"""Image folders of one's own: what is found in them, and what is refused in one line."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.datasets_on_disk import numbered_image, write_image_folder, write_parquet
from timm_patchup.data.discover import discover
from timm_patchup.data.folders import FolderSource, list_classes
from timm_patchup.data.loader import load_data
from timm_patchup.data.source import open_source, open_test, open_train
from timm_patchup.data.splits import hold_out
from timm_patchup.errors import DataError
from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.recipe.parts import DataSpec

IMAGES = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "crop_mode": "center"}
RESIZED = {"interpolation": "bilinear", "train_interpolation": "bilinear", "batch_size": 5}


def found(folder: Path, **given: object) -> Recipe:
    """Return the recipe for a folder as a run would resolve it, without the model's keys."""
    recipe = load_recipe("finetune_none", {**IMAGES, **RESIZED, **given})
    return Recipe.from_dict(recipe.to_dict() | discover(recipe, folder).keys)


def keys(recipe: Recipe) -> tuple[object, ...]:
    return recipe.train_split, recipe.val_split, recipe.select_split, recipe.val_fraction, recipe.test_fraction


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ("train test", ("train", "test", None, 0.1, 0.0)),
        ("train val", ("train", "val", None, 0.1, 0.0)),
        ("training validation", ("training", "validation", None, 0.1, 0.0)),
        ("train val test", ("train", "test", "val", 0.0, 0.0)),
        ("train validation test", ("train", "test", "validation", 0.0, 0.0)),
        ("train", ("train", "test", None, 0.1, 0.2)),
    ],
)
def test_splits_of_image_folders(tmp_path: Path, splits: str, expected: tuple[object, ...]) -> None:
    folder = write_image_folder(tmp_path / "photos", dict.fromkeys(splits.split(), 30))
    recipe = found(folder)
    assert keys(recipe) == expected
    assert (recipe.dataset, recipe.num_classes) == ("photos", 3)
    data = load_data(recipe, folder)
    assert data.class_names == ["n000", "n001", "n002"]
    assert data.held_out
    if expected[2] is not None:
        assert (len(data.train), len(data.val), len(data.test)) == (30, 30, 30)


def test_given_splits_are_kept(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 9, "val": 6, "test": 6})
    assert keys(found(folder, val_split="val")) == ("train", "val", None, 0.1, 0.0)
    assert keys(found(folder, val_fraction=0.3)) == ("train", "test", None, 0.3, 0.0)
    assert keys(found(folder, val_split="val", val_fraction=0)) == ("train", "val", None, 0.0, 0.0)
    assert found(folder, num_classes=3, dataset="mine").dataset == "mine"


def test_class_folders_alone_have_a_stratified_test_share(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path, {"photos": 60}) / "photos"
    recipe = found(folder)
    assert keys(recipe) == ("all", "test", None, 0.1, 0.2)
    data = load_data(recipe, folder)
    assert (len(data.train), len(data.val), len(data.test)) == (43, 5, 12)
    assert data.test.labels.bincount().tolist() == [4, 4, 4]
    spec = DataSpec.of(recipe)
    (train_source, train), (test_source, test) = open_train(spec, folder), open_test(spec, folder)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(60)), "every image is used once"
    assert np.array_equal(train_source.labels, test_source.labels)
    assert "test_fraction" in spec.test_keys(), "an evaluation tells these images from those of another share"
    summary = discover(load_recipe("finetune_none"), folder).summary
    assert "no test images: 20% of each class set apart for the test" in summary


@pytest.mark.parametrize("name", ["image", "img"])
def test_a_dataset_in_the_layout_of_the_hub(tmp_path: Path, name: str) -> None:
    folder = write_parquet(tmp_path / "photos", {"train": 30, "test": 10}, input_key=name, target_key="fine_label")
    recipe = found(folder)
    assert (recipe.input_key, recipe.target_key, recipe.num_classes) == (name, "fine_label", 10)
    assert keys(recipe) == ("train", "test", None, 0.1, 0.0)
    assert len(load_data(recipe, folder).test) == 10


def test_other_files_and_hidden_folders_are_no_images(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path, {"train": 6, "test": 3})
    (folder / "train" / "n000" / "notes.txt").write_text("not an image")
    (folder / "train" / "labels.csv").write_text("a,b")
    for hidden in (folder / "train" / ".cache", folder / "train" / "n000" / ".thumbnails"):
        shutil.copytree(folder / "train" / "n001", hidden)
    numbered_image(1).save(folder / "train" / "n000" / "._0.png")
    source = FolderSource(folder / "train")
    assert len(source.labels) == 6
    assert source.class_names == ["n000", "n001", "n002"]


def test_photos_of_all_readable_kinds_are_used_and_others_noted(tmp_path: Path) -> None:
    """Also where a name ends in capitals; a photo that cannot be read is not left out in silence."""
    folder = write_image_folder(tmp_path / "photos", {"train": 6, "test": 3})
    kinds = ["a.webp", "b.gif", "c.bmp", "d.tif", "e.TIFF", "f.JPG", "g.jpeg"]
    for name in kinds:
        numbered_image(1).save(folder / "train" / "n000" / name)
    for name in ("h.heic", "i.HEIC", "notes.txt", "LICENSE", ".DS_Store"):
        (folder / "train" / "n001" / name).write_text("no image")
    source = FolderSource(folder / "train")
    assert len(source.labels) == 6 + len(kinds)
    assert {len(source.rgb(index)) for index in range(len(source.labels))} == {3}, "all can be decoded"
    summary = discover(load_recipe("finetune_none", {**IMAGES, **RESIZED}), folder).summary
    assert summary.endswith("; note: 4 other files in train/ ignored (.heic, .txt, LICENSE)")


def test_a_class_missing_from_the_test_keeps_the_numbers_of_the_others(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 30, "test": 30})
    shutil.rmtree(folder / "test" / "n000")
    recipe = load_recipe("finetune_none", {**IMAGES, **RESIZED})
    assert "note: test/ has no images of n000" in discover(recipe, folder).summary
    source = open_source(DataSpec.of(found(folder)), "test", folder)
    assert source.class_names == ["n000", "n001", "n002"]
    assert sorted(set(source.labels.tolist())) == [1, 2]


def _empty_class(folder: Path) -> None:
    (folder / "train" / "n003").mkdir()


def _one_class(folder: Path) -> None:
    for path in folder.glob("*/n00[12]"):
        shutil.rmtree(path)


def _outside(folder: Path) -> None:
    numbered_image(1).save(folder / "train" / "lost.png")


def _nothing(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _text_only(folder: Path) -> None:
    _nothing(folder)
    (folder / "a.txt").write_text("no images here")


def _no_train(folder: Path) -> None:
    (folder / "train").rename(folder / "val")


def _deeper(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "deeper" / "photos")
    shutil.rmtree(folder)
    (folder.parent / "deeper").rename(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_empty_class, "train: class folder 'n003' has no images: add some, or remove the folder"),
        (_one_class, "has one class, 'n000': a classifier needs at least two class folders"),
        (_outside, "lost.png is in no class folder: move such images to the folder of their class"),
        (_nothing, "contains no images in a known layout: expected train/CLASS/"),
        (_text_only, "no column has images, there is only text: is this the folder of your images"),
        (_no_train, r"no split to train on among val, test: name it with train_split"),
        (_deeper, r"has no images of its own, but photos/ has train/, test/: give "),
    ],
)
def test_folders_that_cannot_be_trained_on(tmp_path: Path, damage: object, message: str) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 9, "test": 6})
    damage(folder)  # type: ignore[operator]
    with pytest.raises(DataError, match=message) as caught:
        found(folder)
    assert len(caught.value.problems) == 1


def test_a_class_that_only_the_test_has_is_refused(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 9, "test": 9})
    recipe = found(folder)
    (folder / "test" / "n001").rename(folder / "test" / "other")
    with pytest.raises(DataError, match=r"test has images of 'other', which the training images do not have"):
        load_data(recipe, folder)


def test_no_images_at_all() -> None:
    recipe = load_recipe("finetune_none")
    with pytest.raises(DataError, match=r"give their folder \(--data-dir FOLDER\) or a dataset"):
        discover(recipe, None)
    with pytest.raises(DataError, match=r"nowhere is not a folder"):
        discover(recipe, "nowhere")


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


def test_two_million_labels_are_split_like_few() -> None:
    """One pass per class would take hours here; the draw per class is as before."""
    labels = np.random.default_rng(0).integers(0, 20_000, 2_000_000)
    rest, held = hold_out(labels, 0.1, seed=3)
    assert len(held) == 200_000
    assert len(np.intersect1d(rest, held)) == 0
    sizes, taken = np.bincount(labels), np.bincount(labels[held])
    assert np.abs(taken - sizes * 0.1).max() < 1


def test_classes_are_in_the_order_of_timm(tmp_path: Path) -> None:
    for name in ("class10", "class9", "b", "A"):
        (tmp_path / name).mkdir()
        numbered_image(1).save(tmp_path / name / "1.png")
    from timm.data.readers.reader_image_folder import find_images_and_targets

    _, order = find_images_and_targets(str(tmp_path))
    assert list_classes(tmp_path) == sorted(order, key=order.__getitem__)


def test_unlabelled_test_images_are_no_split(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 30})
    (folder / "test").mkdir()
    numbered_image(1).save(folder / "test" / "unknown.png")
    assert keys(found(folder)) == ("train", "test", None, 0.1, 0.2)
