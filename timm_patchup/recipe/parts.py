"""The parts of a recipe that a function may need on its own: which data, which images, which augmentation.

Each part is a small frozen dataclass with the recipe's key names. ``of`` takes a part from a recipe; change a single
value with ``dataclasses.replace``.
"""

from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, TypeVar

from ..errors import UserError
from .schema import Recipe

Part = TypeVar("Part")
CROP_MODES = ("center", "squash", "border")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
# These keys select training images or affect speed only.
_NOT_TEST_KEYS = ("train_split", "workers")


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """A labeled dataset: where it is, its splits and columns, and the loader processes it needs."""

    dataset: str
    dataset_config: str | None = None
    train_split: str = "train"
    val_split: str = "test"
    input_key: str = "image"
    target_key: str = "label"
    num_classes: int
    split_seed: int = 0
    workers: int = 0

    @classmethod
    def of(cls, recipe: Recipe) -> "DataSpec":
        return _take(cls, recipe)

    def test_keys(self) -> dict[str, Any]:
        """Return the keys that identify the test images."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_TEST_KEYS}


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """How a model expects its test images.

    Raises:
        UserError: all invalid values, one line each.
    """

    input_size: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float = 1.0
    crop_mode: str = "center"
    interpolation: str = "bilinear"
    crop_padding: int | None = None

    def __post_init__(self) -> None:
        if problems := _image_problems(self):
            raise UserError(problems)
        # JSON and timm may give integers; the specs 1 and 1.0 would be equal but print differently.
        object.__setattr__(self, "mean", tuple(map(float, self.mean)))
        object.__setattr__(self, "std", tuple(map(float, self.std)))
        object.__setattr__(self, "crop_pct", float(self.crop_pct))

    @classmethod
    def of(cls, recipe: Recipe) -> "ImageSpec":
        return _take(cls, recipe)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.input_size[1], self.input_size[2]

    @property
    def is_cropped(self) -> bool:
        """Whether images are resized and cropped; small images (``crop_padding`` set) are resized whole."""
        return self.crop_padding is None


@dataclass(frozen=True, kw_only=True)
class AugmentSpec:
    """Random changes to training images, and their seed."""

    scale: tuple[float, ...]
    ratio: tuple[float, ...]
    hflip: float
    vflip: float
    color_jitter: float
    lighting: float
    aa: str | None
    train_interpolation: str
    reprob: float
    remode: str
    recount: int
    seed: int

    @classmethod
    def of(cls, recipe: Recipe) -> "AugmentSpec":
        return _take(cls, recipe)

    @property
    def needs_single_images(self) -> bool:
        """Whether there is more than crops and horizontal flips, which are done for a whole batch at once."""
        return bool(self.color_jitter or self.lighting or self.aa or self.reprob or self.vflip)


def _take(part: type[Part], recipe: Recipe) -> Part:
    values = {f.name: getattr(recipe, f.name) for f in fields(part)}  # type: ignore[arg-type]
    return part(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _image_problems(images: ImageSpec) -> list[str]:
    """Return what is wrong with values that may come from somebody else's config.json."""
    size = images.input_size
    if len(size) != 3 or size[0] not in (1, 3) or not all(isinstance(side, int) and side > 0 for side in size):
        return [f"input_size must be channels (1 or 3), height, width, got {list(size)}"]
    problems = []
    if len(images.mean) != size[0] or not all(_is_number(value) and 0 <= value <= 1 for value in images.mean):
        problems.append(f"mean must be {size[0]} numbers in [0, 1], one per channel, got {list(images.mean)}")
    if len(images.std) != size[0] or not all(_is_number(value) and value > 0 for value in images.std):
        problems.append(f"std must be {size[0]} numbers above 0, one per channel, got {list(images.std)}")
    if not (_is_number(images.crop_pct) and 0 < images.crop_pct <= 1):
        problems.append(f"crop_pct must be a number above 0 and at most 1, got {images.crop_pct!r}")
    for name, choices in (("crop_mode", CROP_MODES), ("interpolation", INTERPOLATIONS)):
        if getattr(images, name) not in choices:
            problems.append(f"{name} must be one of {', '.join(choices)}, got {getattr(images, name)!r}")
    return problems


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and isfinite(value)
