"""Wrong settings, a wrong model or a wrong draw of a method end in one clear line."""

from typing import Any

import pytest
import torch

from tests.support.expectations import hook_count
from timm_patchup import Draw, create_mixer
from timm_patchup.core.draw import Erase

from .every_method import WITH_SITES, batch, mixer_of, tiny_net


@pytest.mark.parametrize("name", WITH_SITES)
def test_two_methods_inside_one_model_are_refused(name: str) -> None:
    model = tiny_net()
    mixer_of("hard_patchup", model)
    with pytest.raises(ValueError, match=r"^the model already has a mixer: call detach\(\) on that one first"):
        mixer_of(name, model)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mixup", {"alpha": 0.0}, "alpha must be a number above 0, got 0.0"),
        ("manifold_mixup", {"alpha": "2"}, "alpha must be a number above 0, got '2'"),
        ("cutmix", {"alpha": -1.0}, "alpha must be a number above 0, got -1.0"),
        ("feature_cutmix", {"alpha": 0}, "alpha must be a number above 0, got 0"),
        ("cutout", {"length": 0}, "length must be a whole number of at least 1, got 0"),
        ("cutout", {"length": 7.5}, "length must be a whole number of at least 1, got 7.5"),
        ("dropblock", {"drop_prob": 1.0}, r"drop_prob must be a number in \[0, 1\), got 1.0"),
        ("dropblock", {"block_size": [3, 5]}, r"block_size must be a whole number of at least 1, got \[3, 5\]"),
        ("cutout", {"sites": ["stem"]}, "unknown setting of cutout 'sites': choose from length, mask, prob"),
        ("mixup", {"sites": 0.5}, "unknown setting of mixup 'sites': choose from alpha, lam, prob"),
    ],
)
def test_wrong_settings_end_in_one_line(name: str, settings: dict[str, Any], message: str) -> None:
    model = tiny_net()
    with pytest.raises((TypeError, ValueError), match=f"^{message}$"):
        create_mixer(name, model, **settings)
    assert hook_count(model) == 0


@pytest.mark.parametrize("scale", [1.0, torch.ones(2), torch.tensor(float("nan")), torch.tensor(-1.0)])
def test_a_draw_with_a_wrong_scale_is_refused(scale: Any) -> None:
    mix = mixer_of("cutout", tiny_net())
    x, y = batch()
    draw = Draw("input", torch.arange(6), Erase(torch.ones(1, 1, 12, 10) > 0, scale))
    with pytest.raises((TypeError, ValueError), match=r"^draw\.change\.scale must "):
        mix(x, y, draw=draw)
