"""The registered nets are timm models in every way: factory, features, head, checkpointing, reload, mixing."""

import copy
from pathlib import Path

import pytest
import timm
import torch
from timm.models import save_for_hf

import timm_patchup
from timm_patchup import PatchUp, list_sites

PARAMETERS = {  # with 10 classes, counted by hand from the papers' tables in test_parameter_counts
    "preactresnet8": ((1, 1, 1), (16, 32, 64), 16),
    "preactresnet18": ((2, 2, 2, 2), (64, 128, 256, 512), 64),
    "preactresnet34": ((3, 4, 6, 3), (64, 128, 256, 512), 64),
    "wrn16_2": ((2, 2, 2), (32, 64, 128), 16),
    "wrn28_10": ((4, 4, 4), (160, 320, 640), 16),
}
SMALL = ["preactresnet8", "wrn16_2"]


def test_all_nets_of_the_package_are_covered() -> None:
    registered = {
        name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("timm_patchup")
    }
    assert registered == {*PARAMETERS, "wrn28_10_authors", "resnet18_cifar"}, "these two have separate files"


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name: str) -> None:
    depths, channels, width = PARAMETERS[name]
    expected = 3 * 9 * width
    for depth, out in zip(depths, channels):
        for block in range(depth):
            expected += 2 * width + width * out * 9 + 2 * out + out * out * 9
            # The first block of a stage changes the width or the size of the map.
            first_of_plain = block == 0 and (width != out or out != channels[0])
            expected += width * out if first_of_plain else 0
            width = out
    expected += 2 * width + width * 10 + 10
    assert sum(p.numel() for p in timm.create_model(name, num_classes=10).parameters()) == expected


@pytest.mark.parametrize("name", PARAMETERS)
def test_config_says_32_pixels(name: str) -> None:
    model = timm.create_model(name)
    assert model.pretrained_cfg["input_size"] == (3, 32, 32)
    assert model.pretrained_cfg["architecture"] == name
    assert model.num_classes == 10
    assert list(list_sites(model))[:4] == ["input", "stem", "stage1", "stage2"]
    assert not timm.list_models(name, pretrained=True)


@pytest.mark.parametrize("name", SMALL)
def test_features_head_and_kwargs_follow_timm(name: str) -> None:
    x = torch.randn(2, 3, 32, 32)
    model = timm.create_model(name, num_classes=7).eval()
    features = timm.create_model(name, features_only=True)
    channels = [info["num_chs"] for info in model.feature_info]
    sizes = [32 // info["reduction"] for info in model.feature_info]
    assert [tuple(f.shape) for f in features(x)] == [(2, c, s, s) for c, s in zip(channels, sizes)]
    assert model(x).shape == (2, 7)
    assert model.forward_head(model.forward_features(x), pre_logits=True).shape == (2, model.num_features)
    model.reset_classifier(3)
    assert model(x).shape == (2, 3)
    assert model.get_classifier().out_features == 3
    model.reset_classifier(0, "")
    assert model(x).shape == (2, model.num_features, sizes[-1], sizes[-1])
    assert timm.create_model(name, in_chans=1)(torch.randn(2, 1, 32, 32)).shape == (2, 10)
    assert timm.create_model(name, stem_stride=2).forward_features(torch.randn(2, 3, 64, 64)).shape[-1] == sizes[-1]


def test_final_norm_can_be_left_out_as_in_the_paper() -> None:
    with_norm, without = (timm.create_model("preactresnet8", final_norm=final) for final in (True, False))
    missing = set(with_norm.state_dict()) - set(without.state_dict())
    assert missing
    assert all(key.startswith("norm.") for key in missing)


@pytest.mark.parametrize("name", SMALL)
def test_gradient_checkpointing_gives_the_same_gradients_under_a_mixer(name: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name)
    twin = copy.deepcopy(model)
    twin.set_grad_checkpointing(True)
    x, y = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    for site in ("stem", "stage1", "stage2"):
        for network in (model, twin):
            network.zero_grad()
            mix = PatchUp(network, prob=1.0, sites=[site], block_size=3)
            mixed, target = mix(x, y)
            mix.loss(network(mixed), target).backward()
            mix.detach()
        for (key, p), q in zip(model.named_parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, msg=lambda text, at=key: f"{at}: {text}")
        twin.load_state_dict(model.state_dict())


def test_optimiser_groups_name_every_parameter() -> None:
    from timm.models import group_parameters

    model = timm.create_model("wrn16_2")
    grouped = group_parameters(model, model.group_matcher())
    names = [name for group in grouped.values() for name in group]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_a_saved_net_loads_again_with_plain_timm(tmp_path: Path) -> None:
    model = timm.create_model("preactresnet8", num_classes=5, stem_stride=2, final_norm=False).eval()
    arguments = {"stem_stride": 2, "final_norm": False}
    save_for_hf(model, tmp_path, model_args=arguments, safe_serialization=True)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(loaded(x), model(x))


def test_package_exposes_the_nets() -> None:
    assert timm_patchup.models.PreActResNet is type(timm.create_model("wrn16_2"))
