"""Folders of the user's images: what is found in them, and what is refused in one line."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.datasets_on_disk import numbered_image, write_image_folder
from timm_patchup.data.discover import discover
from timm_patchup.data.folders import FolderSource, list_classes
from timm_patchup.data.loader import load_data
from timm_patchup.data.source import open_source, open_test, open_train
from timm_patchup.errors import DataError
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.parts import DataSpec

from .discovered import IMAGES, RESIZED, found, keys


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ("train test", ("train", "test", None, 0.1, 0.0)),
        ("train val", ("train", "val", None, 0.1, 0.0)),
        ("training validation", ("training", "validation", None, 0.1, 0.0)),
        ("train val test", ("train", "test", "val", 0.0, 0.0)),
        ("train validation test", ("train", "test", "validation", 0.0, 0.0)),
        ("train", ("train", "test", None, 0.1, 0.2)),
        ("Training Testing", ("Training", "Testing", None, 0.1, 0.0)),
        ("Train VAL Test", ("Train", "Test", "VAL", 0.0, 0.0)),
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
    assert keys(found(folder, val_per_class=2)) == ("train", "test", None, 0.0, 0.0)
    assert found(folder, num_classes=3, dataset="mine").dataset == "mine"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"val_per_class": 2}, "epoch chosen on 2 training images of each class"),
        ({"val_fraction": 0, "select_split": None}, "the last epoch is tested"),
        ({"val_fraction": 0, "select_split": None, "best_on_test": True}, "epoch chosen on the test images"),
        ({}, "epoch chosen on val"),
    ],
)
def test_the_summary_states_what_chooses_the_epoch(tmp_path: Path, given: dict[str, object], text: str) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 9, "val": 6, "test": 6})
    assert discover(load_recipe("finetune_none", given), folder).summary.split("; ")[2] == text


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
    assert "test_fraction" in spec.test_keys(), "an evaluation tells these images from another share's"
    summary = discover(load_recipe("finetune_none"), folder).summary
    assert "no test images: 20% of each class set apart for the test" in summary


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
    """Also where a name ends in capitals; a photo that cannot be read is not left out silently."""
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


def _without_classes(folder: Path) -> None:
    for path in folder.glob("*/*/*"):
        path.rename(path.parent.parent / f"{path.parent.name}-{path.name}")
    for path in folder.glob("*/n*/"):
        path.rmdir()
    (folder / "labels.csv").write_text("id,label\n")


def _without_classes_in_capitals(folder: Path) -> None:
    _without_classes(folder)
    for name in ("train", "test"):
        (folder / name).rename(folder / name.capitalize())


def _without_folders(folder: Path) -> None:
    _without_classes(folder)
    for path in folder.glob("*/*"):
        path.rename(folder / f"{path.parent.name}-{path.name}")
    for split in ("train", "test"):
        (folder / split).rmdir()


def _in_another_encoding(folder: Path) -> None:
    (folder / "train" / "n001").rename(folder / "train" / os.fsdecode(b"caf\xe9"))


def _inside_another(folder: Path) -> None:
    """More images of a class, in a folder that would be a separate class, shared with other classes."""
    for name in ("n000", "n001"):
        (folder / "train" / name / "more").mkdir()
        numbered_image(1).save(folder / "train" / name / "more" / "1.png")


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
        (
            _without_classes,
            r"photos/t\w+ has images, but no class folders: .* of its class, .*photos/t\w+/CLASS$",
        ),
        (
            _without_classes_in_capitals,
            r"photos/T\w+ has images, but no class folders: .* of its class, .*photos/T\w+/CLASS$",
        ),
        (_without_folders, r"photos has images, but no class folders: .* of its class, .*photos/CLASS$"),
        (_in_another_encoding, r"train: the name of the class folder 'caf\\udce9' is not UTF-8: rename it"),
        (_inside_another, r"n00\d has images, and so has .*n00\d/more: put all images of a class into one folder"),
        (_nothing, "contains no images in a known layout: expected train/CLASS/"),
        (_text_only, "no column has images, there is only text: is this the folder of your images"),
        (_no_train, r"no split to train on among val, test: name it with train_split"),
        (_deeper, r"has no images itself, but photos/ has train/, test/: give "),
    ],
)
def test_folders_that_cannot_be_trained_on(tmp_path: Path, damage: object, message: str) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 9, "test": 6})
    damage(folder)  # type: ignore[operator]
    with pytest.raises(DataError, match=message) as caught:
        found(folder)
    assert len(caught.value.problems) == 1


def test_a_class_may_be_called_as_a_split_is(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 9})
    for path in (folder / "train").iterdir():
        path.rename(folder / path.name)
    (folder / "train").rmdir()
    (folder / "n001").rename(folder / "train")
    data = load_data(found(folder), folder)
    assert data.class_names == ["n000", "n002", "train"]


def test_a_class_that_only_the_test_has_is_refused(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 9, "test": 9})
    recipe = found(folder)
    (folder / "test" / "n001").rename(folder / "test" / "other")
    with pytest.raises(DataError, match=r"test has images of 'other', which the training images do not have"):
        load_data(recipe, folder)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"select_split": "val"},
            r"val_split test and select_split val are the same images \(.*/photos/test\): choose",
        ),
        ({"select_split": "test"}, "val_split test and select_split test are the same images"),
        ({"select_split": "train"}, "train_split train and select_split train are the same images"),
        ({"val_split": "train"}, "train_split train and val_split train are the same images"),
        ({"train_split": "all"}, "train_split all has the images of val_split test, too"),
    ],
)
def test_the_test_images_neither_train_nor_choose_the_epoch(
    tmp_path: Path, given: dict[str, str], message: str
) -> None:
    """Without a folder val/, test/ stands for it, which would choose the best epoch on the test and report it so."""
    folder = write_image_folder(tmp_path / "photos", {"train": 9, "test": 9})
    with pytest.raises(DataError, match=message):
        load_data(found(folder, **given), folder)


def test_no_images_at_all() -> None:
    recipe = load_recipe("finetune_none")
    with pytest.raises(DataError, match=r"give their folder \(--data-dir FOLDER\) or a dataset"):
        discover(recipe, None)
    with pytest.raises(DataError, match=r"nowhere is not a folder"):
        discover(recipe, "nowhere")


def test_classes_are_in_the_order_of_timm(tmp_path: Path) -> None:
    for name in ("class10", "class9", "b", "A"):
        (tmp_path / name).mkdir()
        numbered_image(1).save(tmp_path / name / "1.png")
    from timm.data.readers.reader_image_folder import find_images_and_targets

    for name in ("2.png", "10.PNG", "b.png", "A1.png"):
        numbered_image(1).save(tmp_path / "b" / name)
    samples, order = find_images_and_targets(str(tmp_path))
    assert list_classes(tmp_path) == sorted(order, key=order.__getitem__)
    source = FolderSource(tmp_path)
    assert [(source.describe(index), label) for index, label in enumerate(source.labels)] == samples


def test_classes_that_timm_leaves_to_chance_have_an_order(tmp_path: Path) -> None:
    """Names that differ in zeros only are equal to timm, so that each process might number them in another way."""
    names = [*sorted("0" * zeros + "1" for zeros in range(8)), "2", "a", "①"]
    for name in names:
        (tmp_path / name).mkdir()
        numbered_image(1).save(tmp_path / name / "1.png")
    assert list_classes(tmp_path) == names
    assert FolderSource(tmp_path).labels.tolist() == list(range(len(names)))


def test_unlabelled_test_images_are_no_split(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 30})
    (folder / "test").mkdir()
    numbered_image(1).save(folder / "test" / "unknown.png")
    assert keys(found(folder)) == ("train", "test", None, 0.1, 0.2)
