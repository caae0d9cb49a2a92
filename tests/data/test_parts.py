"""Parts of a recipe: they take the recipe's values, and images of unknown origin are checked."""

from dataclasses import fields, replace

import numpy as np
import pytest

from tests.support.recipes import load_complete
from timm_patchup.data.images import EVALUATION, open_images
from timm_patchup.data.source import open_source
from timm_patchup.errors import UserError
from timm_patchup.recipe import list_recipes
from timm_patchup.recipe.data_names import find_data_spec, list_data, load_data_spec
from timm_patchup.recipe.parts import AugmentSpec, DataSpec, ImageSpec

from .small_recipe import small


def test_parts_have_the_values_of_every_recipe() -> None:
    names = list_recipes()
    assert len(names) >= 180
    for name in names:
        recipe = load_complete(name)
        for part in (DataSpec.of(recipe), ImageSpec.of(recipe), AugmentSpec.of(recipe)):
            for field in fields(part):
                value = getattr(part, field.name)
                assert (list(value) if isinstance(value, tuple) else value) == getattr(recipe, field.name)
            assert hash(part) == hash(replace(part))


def test_test_keys_identify_the_test_images() -> None:
    data = load_data_spec("fashion_mini")
    assert replace(data, train_split="other", workers=4).test_keys() == data.test_keys()
    for change in ({"val_split": "train"}, {"split_seed": 1}, {"dataset_config": "b"}):
        assert replace(data, **change).test_keys() != data.test_keys()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_size": (2, 8, 8)}, r"input_size must be channels \(1 or 3\), height, width, got \[2, 8, 8\]"),
        ({"input_size": (3, 8)}, r"input_size must be .* got \[3, 8\]"),
        ({"input_size": (3, 0, 8)}, "input_size must be .*, got 0"),
        ({"mean": (0.5,)}, r"mean needs 3 values, one per channel, got \[0.5\]"),
        ({"mean": (128, 128, 128)}, r"mean must be a number in \[0, 1\], got 128"),
        ({"std": (0.5, 0.5, 0)}, "std must be a number above 0, got 0"),
        ({"std": ("a", "b", "c")}, "std must be a number above 0, got 'a'"),
        ({"crop_pct": 1.2}, r"crop_pct must be a number in \(0, 1\], got 1.2"),
        ({"crop_pct": float("nan")}, r"crop_pct must be a number in \(0, 1\], got nan"),
        ({"crop_mode": "corner"}, r"crop_mode must be one of center, squash, border, got 'corner'"),
        ({"interpolation": "lanczos"}, r"interpolation must be one of nearest, bilinear, bicubic, got 'lanczos'"),
    ],
)
def test_images_of_a_foreign_config_are_checked(changes: dict[str, object], message: str) -> None:
    spec = ImageSpec(input_size=(3, 8, 8), mean=(0, 1, 0.5), std=(1, 1, 1), crop_pct=1)
    assert repr((*spec.mean, spec.crop_pct)) == "(0.0, 1.0, 0.5, 1.0)"
    with pytest.raises(UserError, match=f"^{message}"):
        replace(spec, **changes)  # type: ignore[arg-type]


def test_choices_are_those_of_recipes() -> None:
    """A recipe accepts what an ImageSpec accepts, and nothing else."""
    for key, choices in (("crop_mode", "center squash border"), ("interpolation", "nearest bilinear bicubic")):
        for value in choices.split():
            assert getattr(ImageSpec.of(small(crop_padding=None, **{key: value})), key) == value
        with pytest.raises(UserError, match=f"{key} must be one of {', '.join(choices.split())}"):
            small(crop_padding=None, **{key: "other"})


def test_data_by_name() -> None:
    for name in list_data():
        data = load_data_spec(name)
        assert find_data_spec(data.dataset) == data
    assert load_data_spec("cifar10_wrn28_10").test_keys() == load_data_spec("cifar10").test_keys()
    assert load_data_spec("imagenet").workers == 8
    assert find_data_spec("hfds/someone/else") is None
    with pytest.raises(UserError, match=r"^unknown data 'cifar11', choose from .*; did you mean cifar10"):
        load_data_spec("cifar11")


@pytest.mark.parametrize("padding", [None, 2])
def test_images_without_augmentation_are_for_evaluation_only(padding: int | None) -> None:
    recipe = small(crop_padding=padding)
    source = open_source(DataSpec.of(recipe), "test")
    images = open_images(source, np.arange(4), ImageSpec.of(recipe))
    assert images.__getitems__([(EVALUATION, 1)])[0].shape == (1, 3, 32, 32)
    with pytest.raises(ValueError, match="cannot be used for training"):
        images.__getitems__([(0, 1)])
    images = open_images(source, np.arange(4), ImageSpec.of(recipe), AugmentSpec.of(recipe))
    assert images.__getitems__([(0, 1)])[0].shape == (1, 3, 32, 32)
