"""Generate the embedded dataset from the original files of Fashion-MNIST, byte for byte the same each time.

    apt-get install dataset-fashion-mnist   # Debian: the original files
    python scripts/make_fashion_mini.py /usr/share/datasets/fashion-mnist timm_patchup/data/fashion_mini

Images are ranked by a keyed hash of their pixels, and the first of each class are selected: a stratified random choice
that does not depend on the version of a random number generator. Rows cycle through the classes, so the first n rows
are balanced. The bytes of PNG and parquet depend on Pillow and pyarrow; the dataset's README.md lists the versions.
"""

import argparse
import gzip
import hashlib
import io
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import ClassLabel, Features, Image
from PIL import Image as PILImage

from timm_patchup.cli.command import Parser
from timm_patchup.data.embedded import CLASSES, PER_CLASS

SEED = 0
SOURCES = {"train": "train", "test": "t10k"}


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """Read a gzipped idx file as a uint8 array with ``ndim`` dimensions."""
    content = gzip.decompress(path.read_bytes())
    if content[:4] != bytes([0, 0, 8, ndim]):
        raise ValueError(f"{path} must be an idx file of bytes with {ndim} dimensions, but starts with {content[:4]!r}")
    header = 4 + 4 * ndim
    return np.frombuffer(content, np.uint8, offset=header).reshape(struct.unpack(f">{ndim}I", content[4:header]))


def choose(images: np.ndarray, labels: np.ndarray, per_class: int) -> list[int]:
    """Return the selected rows: ``per_class`` per class, cycling through the classes, ordered by keyed hash."""
    key = f"fashion_mini/{SEED}".encode()
    ranks = [hashlib.blake2b(image.tobytes(), key=key, digest_size=16).digest() for image in images]
    order = sorted(range(len(images)), key=ranks.__getitem__)
    by_class = [[row for row in order if labels[row] == label][:per_class] for label in range(len(CLASSES))]
    return [row for turn in zip(*by_class, strict=True) for row in turn]


def png(image: np.ndarray) -> bytes:
    """Encode an image, uint8 (28, 28), as a grey PNG."""
    buffer = io.BytesIO()
    PILImage.fromarray(image).save(buffer, "PNG", compress_level=9)
    return buffer.getvalue()


def make_split(source: Path, split: str, output: Path) -> Path:
    """Write a split as parquet and return its path."""
    prefix = SOURCES[split]
    images = read_idx(source / f"{prefix}-images-idx3-ubyte.gz", 3)
    labels = read_idx(source / f"{prefix}-labels-idx1-ubyte.gz", 1)
    rows = choose(images, labels, PER_CLASS[split])
    schema = Features({"image": Image(), "label": ClassLabel(names=list(CLASSES))}).arrow_schema
    columns = {
        "image": [{"bytes": png(images[row]), "path": f"{prefix}-{row:05d}.png"} for row in rows],
        "label": [int(labels[row]) for row in rows],
    }
    path = output / "data" / f"{split}-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.Table.from_pydict(columns, schema=schema),
        path,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=19,
        use_dictionary=False,
        write_statistics=False,
    )
    return path


def main(argv: list[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with the four idx .gz files")
    parser.add_argument("output", type=Path, help="folder of the dataset; receives data/*.parquet")
    args = parser.parse_args(argv)
    for split in SOURCES:
        try:
            path = make_split(args.source, split, args.output)
        except (OSError, EOFError, ValueError) as error:
            parser.error(str(error))
        print(f"{path}  {path.stat().st_size:,} bytes  sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
