"""The registry of methods: their names and defaults, what create_mixer makes of them, and the method none."""

import copy

import pytest
import torch
import torch.nn.functional as F
from timm.data.mixup import mixup_target
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from tests.support.expectations import tiny
from timm_patchup import PatchUp, create_mixer, list_methods
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


def test_methods_and_their_defaults() -> None:
    assert {"hard_patchup", "soft_patchup", "none"} <= set(list_methods())
    assert list_methods() == sorted(list_methods())
    common = {"block_size": 7, "alpha": 2.0, "sites": None, "mask": "batch", "input_mask": "rectangle"}
    hard = {"mode": "hard", "prob": 0.7, "gamma": 0.5, "objective": "paper", "label_smoothing": 0.0} | common
    soft = {"mode": "soft", "prob": 1.0, "gamma": 0.75, "objective": "paper", "label_smoothing": 0.0} | common
    for name, expected in (("hard_patchup", hard), ("soft_patchup", soft)):
        defaults = {key: parameter.default for key, parameter in method_parameters(name).items()}
        assert expected.items() <= defaults.items()
    assert "gamma" not in method_parameters("none")


def test_create_mixer_makes_what_the_defaults_say(model: nn.Module) -> None:
    for name, expected in (
        ("hard_patchup", {"mode": "hard", "prob": 0.7, "gamma": 0.5, "block_size": [7, 7, 7, 7]}),
        ("soft_patchup", {"mode": "soft", "prob": 1.0, "gamma": 0.75, "block_size": [7, 7, 7, 7]}),
    ):
        mix = create_mixer(name, model)
        assert isinstance(mix, PatchUp)
        assert expected.items() <= mix.settings().items()
        assert mix.settings()["sites"] == ["input", "stem", "stage1", "stage2"]
        mix.detach()
        mix = create_mixer(name, model, gamma=0.25, sites=["stem"], seed=5)
        changed = {"gamma": 0.25, "sites": ["stem"], "block_size": [7], "seed": 5}
        assert (expected | changed).items() <= mix.settings().items()
        mix.detach()


def test_method_none_alters_nothing(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = create_mixer("none", model, label_smoothing=0.1)
    for _ in range(3):
        x, target = mix(images, labels)
        output = model(x)
        assert x is images
        assert torch.equal(output, clean(images))
        torch.testing.assert_close(target, mixup_target(labels, NUM_CLASSES, smoothing=0.1))
        plain = F.cross_entropy(output, labels, label_smoothing=0.1).item()
        assert mix.loss(output, target).item() == pytest.approx(plain, abs=1e-6)
    # Any module will do, also one without named sites.
    other = create_mixer("none", tiny(), num_classes=NUM_CLASSES)
    assert other(images, labels)[0] is images
