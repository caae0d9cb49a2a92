"""A picture of predictions: the images in a grid, each with the name and the probability of its class."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image

from ..report.figures import Figure, panels
from ..system.files import read_file
from .predict import Prediction

MAX_IMAGES = 64
_COLUMNS = 8
_PIXELS = 160


def plot_predictions(predictions: Sequence[Prediction]) -> Figure:
    """Plot images that could be read, ``MAX_IMAGES`` at most."""
    figure, all_axes = panels(len(predictions), columns=_COLUMNS, width=1.7, height=2.0)
    for axes, prediction in zip(all_axes, predictions):
        with Image.open(BytesIO(read_file(Path(prediction.path)))) as image:
            small = image.convert("RGB")
            small.thumbnail((_PIXELS, _PIXELS))
        axes.imshow(small)
        axes.set_axis_off()
        axes.set_title(f"{prediction.label}\n{prediction.probability:.0%}", fontsize=8)
    return figure
