"""The parts of a recipe that a function may need on its own: which data, which images, which augmentation.

Each part is a small frozen dataclass with the recipe's key names. ``of`` takes a part from a recipe; change a single
value with ``dataclasses.replace``.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from ..core.settings import AUTO, collecting, raise_together, settings_of
from ..errors import UserError
from .rules import image_contradictions
from .schema import Recipe

Part = TypeVar("Part")
# These keys select training images or affect speed only, unless the test images are a share of the train split.
_NOT_TEST_KEYS = ("train_split", "test_fraction", "workers")


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """A labelled dataset: where it is, its splits and columns, and the loader processes it needs."""

    dataset: str
    dataset_config: str | None = None
    train_split: str = "train"
    val_split: str = "test"
    input_key: str = "image"
    target_key: str = "label"
    num_classes: int
    split_seed: int = 0
    test_fraction: float = 0.0
    workers: int = 0

    @classmethod
    def of(cls, recipe: Recipe) -> "DataSpec":
        return _take(cls, recipe)

    def test_keys(self) -> dict[str, Any]:
        """Return the keys that identify the test images."""
        left_out = ("workers",) if self.test_fraction else _NOT_TEST_KEYS
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}


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
        # Values may come from a downloaded config.json: they are checked like the keys of a recipe.
        errors: list[UserError] = []
        for f in fields(self):
            with collecting(errors):
                value = replace(settings_of(Recipe)[f.name], auto=False).check(getattr(self, f.name))
                object.__setattr__(self, f.name, tuple(value) if isinstance(value, list) else value)
        if not errors:
            problems = image_contradictions(self.input_size, self.mean, self.std, self.crop_pct)
            errors = [UserError(line) for line in problems]
        raise_together(errors)

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
    aug_splits: int = 0
    crop_padding_mode: str = "constant"

    @classmethod
    def of(cls, recipe: Recipe) -> "AugmentSpec":
        return _take(cls, recipe)

    @property
    def needs_single_images(self) -> bool:
        """Whether there is more than crops and horizontal flips, which are done for a whole batch at once."""
        return bool(self.color_jitter or self.lighting or self.aa or self.reprob or self.vflip)


def _take(part: type[Part], recipe: Recipe) -> Part:
    values = {f.name: getattr(recipe, f.name) for f in fields(part)}  # type: ignore[arg-type]
    unknown = [name for name, value in values.items() if isinstance(value, str) and value == AUTO]
    if unknown:
        raise UserError(f"{', '.join(unknown)}: taken from your own images, so they need a folder (--data-dir)")
    return part(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
