"""What is named like an image and is none: FIFOs, sockets, devices, links to themselves."""

import os
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.datasets_on_disk import write_image_folder, write_parquet
from timm_patchup.data.discover import discover
from timm_patchup.data.folders import FolderSource, count_other_files, list_classes
from timm_patchup.data.source import open_source
from timm_patchup.errors import DataError
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.parts import DataSpec

ODD = ["fifo", "socket", "device"]


def plant(kind: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put something that is no regular file at a path; reading most of them never ends."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "broken":
        path.symlink_to("nowhere")
    else:
        with socket.socket(socket.AF_UNIX) as server, monkeypatch.context() as there:
            there.chdir(path.parent)  # the path of a socket must be short
            server.bind(path.name)


@pytest.mark.parametrize("kind", ODD)
def test_only_regular_files_are_images(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 6, "test": 6})
    for split in ("train", "test"):
        plant(kind, folder / split / "n001" / "x.jpg", monkeypatch)
    source = FolderSource(folder / "train")
    assert len(source.labels) == 6
    assert not any(source.describe(index).endswith("x.jpg") for index in range(6))
    assert count_other_files(folder / "train") == {".jpg": 1}
    assert "1 other file in train/ ignored (.jpg)" in discover(load_recipe("finetune_none"), folder).summary


def test_a_class_with_nothing_but_a_fifo_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 6})
    (folder / "train" / "more").mkdir()
    plant("fifo", folder / "train" / "more" / "x.jpg", monkeypatch)
    with pytest.raises(DataError, match="'more' has no images"):
        list_classes(folder / "train")


@pytest.mark.parametrize("kind", ["loop", "broken"])
def test_a_link_to_nothing_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out, a dataset of links to a disk that is not mounted would shrink silently."""
    folder = write_image_folder(tmp_path / "photos", {"train": 6})
    plant(kind, folder / "train" / "n001" / "x.jpg", monkeypatch)
    source = FolderSource(folder / "train")
    assert len(source.labels) == 7
    with pytest.raises(DataError, match=r"x\.jpg: "):
        [source.rgb(index) for index in range(7)]


@pytest.mark.parametrize("place", ["loop", "train/loop", "train/n001/loop", "loop.jpg", "train/n001/loop.jpg"])
def test_a_link_to_itself_is_no_folder(place: str, tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 6, "test": 6})
    (folder / place).symlink_to(Path(place).name)
    assert discover(load_recipe("finetune_none"), folder).keys["num_classes"] == 3


def test_a_link_to_itself_outside_of_class_folders_is_one_line(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 6, "test": 6})
    (folder / "train" / "loop.jpg").symlink_to("loop.jpg")
    with pytest.raises(DataError, match=r"loop\.jpg is in no class folder"):
        discover(load_recipe("finetune_none"), folder)


@pytest.mark.parametrize("to", [".", "..", "../.."])
def test_a_link_that_leads_back_is_one_line(to: str, tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 6, "test": 6})
    (folder / "train" / "n001" / "back").symlink_to(to)
    with pytest.raises(DataError, match=r"back is a link to a folder that it is in|one inside another|has images") as e:
        FolderSource(folder / "train")
    assert len(e.value.problems) == 1


def test_folders_that_are_links_are_followed(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "photos", {"train": 6})
    (folder / "train" / "n001").rename(tmp_path / "elsewhere")
    (folder / "train" / "n001").symlink_to(tmp_path / "elsewhere")
    assert len(FolderSource(folder / "train").labels) == 6


def test_a_row_that_names_a_fifo_is_one_line(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "rows", {"train": 4})
    path = next(folder.rglob("*.parquet"))
    os.mkfifo(tmp_path / "x.jpg")
    table = pq.read_table(path)
    rows = [{"bytes": None, "path": str(tmp_path / "x.jpg")}, *table.column("image").to_pylist()[1:]]
    images = pa.array(rows, type=table.schema.field("image").type)
    pq.write_table(table.set_column(0, table.schema.field("image"), images), path)
    source = open_source(DataSpec(dataset="mine", num_classes=10), "train", folder)
    with pytest.raises(DataError, match="not a regular file"):
        source.rgb(0)


@pytest.mark.parametrize("kind", ODD)
def test_parquet_files_are_regular(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_parquet(tmp_path / "rows", {"train": 4})
    plant(kind, folder / "data" / "test-00000-of-00001.parquet", monkeypatch)
    for split in ("train", "test"):  # datasets opens both
        with pytest.raises(DataError, match="not a regular file"):
            open_source(DataSpec(dataset="mine", num_classes=10), split, folder)
