"""The data set inside the package: 3,000 images of Fashion-MNIST, so that a first run needs no download.

It has the layout of a Hub data set, so ``datasets.load_dataset`` reads it like any other. It is made by
``scripts/make_fashion_mini.py`` and described in its own README.md.
"""

from importlib.resources import files
from pathlib import Path

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
PER_CLASS = {"train": 100, "test": 200}


def fashion_mini_dir() -> Path:
    """Return the folder of the embedded data set: splits ``train`` and ``test``, columns ``image`` and ``label``.

    Example:
        >>> datasets.load_dataset(str(fashion_mini_dir()), split="train")[0]["label"]
        0
    """
    return Path(str(files(__package__))) / "fashion_mini"


def fashion_mini_file(split: str) -> Path:
    """Return the parquet file of a split, ``train`` or ``test``."""
    return fashion_mini_dir() / "data" / f"{split}-00000-of-00001.parquet"
