"""Labelled images of one split: what every source of them offers, and how image files become pixels.

``source.py`` opens them; an image that cannot be decoded raises DataError with the image's name.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from PIL import Image
from torch import Tensor

from ..errors import DataError, one_line
from .decode import Undecodable, convert_image, decode_rgb, open_image, to_pixels


class Source(ABC):
    """Labelled images of one split.

    Attributes:
        labels: int (N,).
        class_names: names of the classes, None if the data has none.
    """

    labels: np.ndarray
    class_names: Sequence[str] | None

    @abstractmethod
    def image(self, index: int, mode: str | None = None) -> Image.Image:
        """Return one image, as stored or converted to the mode RGB or L.

        Raises:
            DataError: it cannot be read; the line has its name.
        """

    @abstractmethod
    def describe(self, index: int) -> str:
        """Return the name of an image for messages: its file, or its place in the dataset."""

    def rgb(self, index: int) -> Tensor:
        """Return the pixels of one image as uint8 (3, H, W); raises as ``image`` does."""
        return to_pixels(self.image(index, "RGB"))


class EncodedSource(Source):
    """A source of image files."""

    @abstractmethod
    def encoded(self, index: int) -> bytes:
        """Return the bytes of an image file."""

    def image(self, index: int, mode: str | None = None) -> Image.Image:
        try:
            image = open_image(self.encoded(index))
            return image if mode is None else convert_image(image, mode)
        except (Undecodable, OSError) as error:
            raise self._failed(index, error) from error

    def rgb(self, index: int) -> Tensor:
        try:
            return decode_rgb(self.encoded(index))
        except (Undecodable, OSError) as error:
            raise self._failed(index, error) from error

    def _failed(self, index: int, error: Exception) -> DataError:
        reason = error.strerror if isinstance(error, OSError) else one_line(error, 200)
        return DataError(f"cannot read the image {self.describe(index)}: {reason}; replace or remove it", retry=True)
