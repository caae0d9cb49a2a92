"""From the bytes of an image file to pixels: JPEG with torchvision's decoder, everything else with Pillow.

Both decoders return the same pixels for a JPEG, so Pillow's will do where the other is missing. Images are turned
upright by their EXIF tag. Of an animation the first frame is used, transparency is dropped, and 16-bit grey values keep
their upper byte; what has no such meaning raises ``Undecodable`` with the reason.
"""

import io

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from timm.data.readers.img_extensions import get_img_extensions
from torch import Tensor

try:
    from torchvision.io import ImageReadMode, decode_jpeg
except ImportError:  # torchvision 0.29 deprecates its decoder; Pillow's takes a tenth longer
    decode_jpeg = None

_JPEG_START = b"\xff\xd8\xff"
_ORIENTATION = 0x0112
MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 1 << 28)  # Pillow refuses to open larger images
# Besides timm's types: JPEG, PNG and what a user has added to timm's list.
_MORE_TYPES = (".webp", ".bmp", ".gif", ".tif", ".tiff")


class Undecodable(ValueError):
    """Bytes that are not an image, or not a usable one; the text is the reason, as the end of a sentence."""


def image_types() -> set[str]:
    """Return how names of image files end, in lower case with the dot."""
    return {*get_img_extensions(), *_MORE_TYPES}


def decode_rgb(data: bytes) -> Tensor:
    """Return the pixels of an image file as uint8 (3, H, W), in any memory format.

    Raises:
        Undecodable: they cannot be decoded.
    """
    if decode_jpeg is not None and data.startswith(_JPEG_START):
        try:
            encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            return decode_jpeg(encoded, mode=ImageReadMode.RGB, apply_exif_orientation=True)
        except RuntimeError:
            pass  # Pillow has more to say about it
    return to_pixels(convert_image(open_image(data), "RGB"))


def open_image(data: bytes) -> Image.Image:
    """Return an image file as an upright Pillow image, in the mode it is stored in.

    Raises:
        Undecodable: it cannot be decoded.
    """
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
        return ImageOps.exif_transpose(image) if image.getexif().get(_ORIENTATION, 1) != 1 else image
    except UnidentifiedImageError as error:
        raise Undecodable("it is not an image" if data else "it is empty") from error
    except Image.DecompressionBombError as error:
        raise Undecodable(f"it has more than {MOST_PIXELS:,} pixels") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # Pillow's plugins raise all of them
        raise Undecodable(f"it is damaged ({error})") from error


def convert_image(image: Image.Image, mode: str) -> Image.Image:
    """Return an image in the mode RGB or L.

    Raises:
        Undecodable: its pixels have 32 bits, so that their range is unknown.
    """
    if image.mode.startswith("I;16"):
        # Pillow would clip at 255, which leaves white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise Undecodable("its pixels have 32 bits, but only 8 and 16 are supported")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # without this step Pillow warns; the colours are the same
    return image.convert(mode)


def to_pixels(image: Image.Image) -> Tensor:
    """Return an RGB or L image as uint8 (C, H, W)."""
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)
