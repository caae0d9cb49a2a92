"""The confusion matrix of a test as a picture: which classes are taken for which."""

from collections.abc import Sequence

import numpy as np

from .figures import Figure, panels

_MAX_WRITTEN = 25  # classes up to which cells have numbers
_NAME_LENGTH = 18


def plot_confusion(matrix: Sequence[Sequence[int]], names: Sequence[str] | None, *, title: str) -> Figure:
    """Plot a confusion matrix: shares of each true class, and the counts if they fit.

    Args:
        matrix: row t, column p is the number of images of class t that were predicted as class p.
        names: the names of the classes, None if they have none.
        title: the title.
    """
    counts = np.asarray(matrix, np.float32)
    shares = counts / counts.sum(axis=1, keepdims=True).clip(1)
    size = len(matrix)
    labels = [str(name)[:_NAME_LENGTH] for name in (names or range(size))]
    side = min(16.0, 3.0 + 0.42 * size)
    figure, (axes,) = panels(width=side, height=side)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(size), labels, rotation=90)
    axes.set_yticks(range(size), labels)
    axes.tick_params(labelsize=9 if size <= _MAX_WRITTEN else 5)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true class")
    axes.set_title(title)
    for row, values in enumerate(matrix if size <= _MAX_WRITTEN else ()):
        for column, count in enumerate(values):
            if count:
                color = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=color, fontsize=8)
    return figure
