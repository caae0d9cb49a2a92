"""A picture of predictions: the images in a grid, each with the name and the probability of its class."""

from collections.abc import Sequence
from io import BytesIO
from math import ceil
from pathlib import Path

from PIL import Image

from ..system.files import read_file, replacing
from .predict import Prediction

MAX_IMAGES = 64
_COLUMNS = 8
_PIXELS = 160


def plot_predictions(predictions: Sequence[Prediction], path: Path) -> None:
    """Plot the first ``MAX_IMAGES`` images that could be read to a PNG file."""
    from matplotlib.figure import Figure

    shown = [prediction for prediction in predictions if prediction.error is None][:MAX_IMAGES]
    columns = min(_COLUMNS, len(shown)) or 1
    rows = ceil(len(shown) / columns) or 1
    figure = Figure(figsize=(1.7 * columns, 2.0 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.axis("off")
    for panel, prediction in zip(axes.flat, shown):
        with Image.open(BytesIO(read_file(Path(prediction.path)))) as image:
            small = image.convert("RGB")
            small.thumbnail((_PIXELS, _PIXELS))
        panel.imshow(small)
        panel.set_title(f"{prediction.label}\n{prediction.probability:.0%}", fontsize=8, parse_math=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format="png")
