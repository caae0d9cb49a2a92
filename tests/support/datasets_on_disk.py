"""Small datasets that tests write: the Hub's parquet layout, or image folders. Each image contains its own number."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def numbered_image(number: int, *, size: int = 32, mode: str = "RGB") -> Image.Image:
    """Return an image whose first two pixels hold its number and whose rest is noise of that seed."""
    shape = (size, size, 3) if mode == "RGB" else (size, size)
    pixels = np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
    pixels[0, 0] = number % 256
    pixels[0, 1] = number // 256
    return Image.fromarray(pixels)


def write_parquet(
    folder: Path,
    counts: dict[str, int],
    *,
    classes: int = 10,
    input_key: str = "image",
    target_key: str = "label",
    size: int = 32,
    mode: str = "RGB",
    unlabelled: bool = False,
) -> Path:
    """Write splits of ``counts`` images as ``data/SPLIT-00000-of-00001.parquet``; labels cycle through the classes."""
    (folder / "data").mkdir(parents=True)
    names = [f"class {number}" for number in range(classes)]
    info = (
        '{"info": {"features": {"%s": {"_type": "Image"}, "%s": {"names": %s, "_type": "ClassLabel"}}}}'  # noqa: UP031
        % (input_key, target_key, str(names).replace("'", '"'))
    )
    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([(input_key, image_type), (target_key, pa.int64())], metadata={"huggingface": info})
    for offset, (split, count) in enumerate(counts.items()):
        images, labels = [], []
        for number in range(count):
            png = io.BytesIO()
            numbered_image(1000 * offset + number, size=size, mode=mode).save(png, "PNG")
            images.append({"bytes": png.getvalue(), "path": None})
            labels.append(-1 if unlabelled and split != "train" else number % classes)
        table = pa.table({input_key: images, target_key: labels}, schema=schema)
        pq.write_table(table, folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def write_image_folder(folder: Path, counts: dict[str, int], *, classes: int = 3, size: int = 48) -> Path:
    """Write ``SPLIT/CLASS/NUMBER.png``."""
    for offset, (split, count) in enumerate(counts.items()):
        for number in range(count):
            path = folder / split / f"n{number % classes:03d}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            numbered_image(1000 * offset + number, size=size).save(path)
    return folder
