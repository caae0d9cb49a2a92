"""Decoding: torchvision's decoder gives Pillow's pixels, unusual images have a stated meaning, damaged ones a line."""

import io
import os
import re
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from timm_patchup.data import decode, workers
from timm_patchup.data.batches import EvaluationBatches
from timm_patchup.data.decode import Undecodable, convert_image, decode_rgb, open_image
from timm_patchup.data.folders import FolderSource
from timm_patchup.data.images import open_images
from timm_patchup.data.loader import ImageLoader, load_data, training_loader
from timm_patchup.data.source import open_source
from timm_patchup.data.workers import Notes, naming_dead_workers
from timm_patchup.errors import DataError
from timm_patchup.recipe.parts import DataSpec, ImageSpec

from .small_recipe import small

RGB = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((56, 40))


def encoded(image: Image.Image, kind: str, **settings: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)  # type: ignore[arg-type]
    return file.getvalue()


def pixels(data: bytes) -> np.ndarray:
    return decode_rgb(data).permute(1, 2, 0).numpy()


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("settings", [{}, {"progressive": True}, {"quality": 40, "subsampling": 2}])
def test_jpegs_have_pillows_pixels(mode: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(RGB.convert(mode), "JPEG", **settings)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(pixels(data), expected)
    monkeypatch.setattr(decode, "decode_jpeg", None)
    assert np.array_equal(pixels(data), expected), "without torchvision's decoder"


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_images_are_turned_upright(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(RGB, kind, exif=exif)
    upright = np.asarray(open_image(data).convert("RGB"))
    assert upright.shape == ((40, 56, 3) if orientation < 5 else (56, 40, 3))
    assert np.array_equal(pixels(data), upright)


def test_unusual_images_have_a_meaning() -> None:
    colours = np.asarray(RGB)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        palette = RGB.quantize(64)
        expected = np.asarray(palette.convert("RGB"))
        assert np.array_equal(pixels(encoded(palette, "PNG")), expected)
        assert np.array_equal(pixels(encoded(palette, "PNG", transparency=bytes(range(64)))), expected)
        see_through = RGB.copy()
        see_through.putalpha(7)
        assert np.array_equal(pixels(encoded(see_through, "PNG")), colours), "transparency is dropped"
        for kind in ("PNG", "WEBP", "GIF"):
            exact = {"lossless": True} if kind == "WEBP" else {}
            moving = encoded(RGB, kind, save_all=True, append_images=[RGB.rotate(180)], **exact)
            still = encoded(RGB, kind, **exact)
            assert np.array_equal(pixels(moving), pixels(still)), "the first frame"


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_keeps_its_upper_byte(kind: str) -> None:
    values = np.linspace(0, 65535, 40 * 56).reshape(40, 56).astype(np.uint16)
    got = pixels(encoded(Image.fromarray(values), kind))
    assert np.array_equal(got, np.repeat((values // 256).astype(np.uint8)[:, :, None], 3, axis=2))
    assert np.array_equal(np.asarray(convert_image(Image.fromarray(values), "L")), values // 256)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"just some text", "it is not an image"),
        (encoded(RGB, "JPEG")[:-300], r"it is damaged \(image file is truncated"),
        (encoded(RGB, "JPEG")[:-2], r"it is damaged \(image file is truncated"),
        (encoded(RGB, "JPEG")[:30], r"it is (not an image|damaged)"),
        (encoded(RGB, "PNG")[:-900], r"it is damaged \(image file is truncated"),
        (encoded(RGB, "GIF")[:-300], r"it is damaged \("),
        (encoded(RGB, "WEBP")[:-90], r"it is damaged \("),
        (encoded(Image.new("F", (3, 3)), "TIFF"), "its pixels have 32 bits, but only 8 and 16 are supported"),
        (encoded(Image.new("I", (3, 3)), "TIFF"), "its pixels have 32 bits, but only 8 and 16 are supported"),
    ],
)
def test_what_cannot_be_decoded_has_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(Undecodable, match=f"^{reason}"):
        decode_rgb(data)


def write_classes(folder: Path) -> Path:
    """Write image folders of JPEGs: two classes of twelve images to train on, and of four to test on."""
    for split, count in (("train", 12), ("val", 4)):
        for name in ("cat", "dog"):
            for number in range(count):
                path = folder / split / name / f"{number}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(encoded(RGB.rotate(7 * number), "JPEG"))
    return folder


FOLDERS = {"num_classes": 2, "val_split": "val", "val_fraction": 0.0, "crop_padding": None, "batch_size": 24}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_file_is_named(tmp_path: Path, workers: int) -> None:
    folder = write_classes(tmp_path / "photos")
    (folder / "train" / "cat" / "notes.txt").write_text("not an image, and not named as one: ignored")
    damaged = folder / "train" / "dog" / "5.jpg"
    damaged.write_bytes(damaged.read_bytes()[:400])
    recipe = small(**FOLDERS, workers=workers)
    data = load_data(recipe, folder)
    assert len(data.train) == 24
    loader, _ = training_loader(data.train, recipe, rank=0, world_size=1)
    with pytest.raises(DataError, match=r"^cannot read the image .*dog.5\.jpg: it is damaged \(.*; replace") as caught:
        list(loader)
    assert "\n" not in str(caught.value)
    assert caught.value.retry, "also from a loader process: the call was right"
    damaged.unlink()
    with pytest.raises(DataError, match=r"dog.5\.jpg: No such file"):
        list(loader)


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    """Rows of a dataset have a number, and the path that ``datasets`` stores with them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    info = '{"info": {"features": {"image": {"_type": "Image"}, "label": {"dtype": "int64", "_type": "Value"}}}}'
    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image_type), ("label", pa.int64())], metadata={"huggingface": info})
    good = encoded(RGB, "PNG")
    images = [{"bytes": good, "path": None}, {"bytes": good[:99], "path": "b.png"}, {"bytes": None, "path": None}]
    (tmp_path / "data").mkdir()
    table = pa.table({"image": [*images[:2], None], "label": [0, 1, 0]}, schema=schema)
    pq.write_table(table, tmp_path / "data" / "train-00000-of-00001.parquet")
    source = open_source(DataSpec.of(small()), "train", tmp_path)
    assert source.rgb(0).shape == (3, 40, 56)
    with pytest.raises(DataError, match=r"the image b\.png, row 1 of split 'train' of .*: it is damaged"):
        source.rgb(1)
    with pytest.raises(DataError, match=r"the image row 2 of split 'train' of .*: the row is empty"):
        source.image(2)
    with pytest.raises(DataError, match=r"^input_key: column 'label' must hold images, got Value"):
        open_source(DataSpec.of(small(input_key="label")), "train", tmp_path)


class Deadly(FolderSource):
    """Kills the process that reads the fifth image."""

    def rgb(self, index: int) -> torch.Tensor:
        if index == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().rgb(index)


def test_a_dead_loader_process_is_reported_with_the_file(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos") / "val"
    spec = ImageSpec(input_size=(3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    images = open_images(Deadly(folder), np.arange(8), spec)
    batches = EvaluationBatches(8, batch_size=2, rank=0, world_size=1)
    loader = ImageLoader(images, batches, workers=2, device=torch.device("cpu"))
    line = rf"^a loader process \(pid \d+\) died while reading {re.escape(images.describe(4))}: "
    with pytest.raises(DataError, match=line), naming_dead_workers():
        list(loader)


def test_a_broken_connection_and_then_the_signal_of_its_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks before the process is among the dead; torch's handler then interrupts the wait for that."""
    notes = Notes(1, str)

    def interrupted(seconds: float) -> None:
        monkeypatch.setattr(notes, "find_dead", lambda: "a loader process died")
        raise RuntimeError("DataLoader worker is killed by signal")

    monkeypatch.setattr(workers.time, "sleep", interrupted)
    with pytest.raises(DataError, match=r"^a loader process died$"), naming_dead_workers():
        raise ConnectionResetError


def test_other_errors_pass_unaltered(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos") / "val"
    spec = ImageSpec(input_size=(3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    batches = EvaluationBatches(8, batch_size=2, rank=0, world_size=1)
    loader = ImageLoader(
        open_images(FolderSource(folder), np.arange(8), spec), batches, workers=2, device=torch.device("cpu")
    )
    threads = torch.get_num_threads()
    assert len(list(loader)) == len(loader) == 4
    assert torch.get_num_threads() == threads
    with pytest.raises(RuntimeError, match=r"^another one$"), naming_dead_workers():
        raise RuntimeError("another one")
