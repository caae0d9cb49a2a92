"""The registry of methods: their names, their defaults, and settings that make the same mixer again."""

import pytest

from timm_patchup import create_mixer
from timm_patchup.methods import method_parameters

from .every_method import ERASING, METHODS, MIXING, WITH_SITES, mixer_of, tiny_net


def test_every_method_is_covered() -> None:
    assert set(METHODS) == MIXING | ERASING | {"none"}
    assert len(METHODS) == 10
    assert set(WITH_SITES) == {"dropblock", "feature_cutmix", "hard_patchup", "manifold_mixup", "soft_patchup"}


@pytest.mark.parametrize("name", METHODS)
def test_settings_make_the_same_mixer_again(name: str) -> None:
    settings = mixer_of(name, tiny_net(), seed=3).settings()
    assert create_mixer(name, tiny_net(), **settings).settings() == settings
    assert set(settings) == set(method_parameters(name)) - {"num_classes"} - ({"seed"} if name == "none" else set())
