"""Sites: names become modules of timm's models, and what names none is said with the nearest."""

import pytest
import timm
import torch
from torch import nn

from timm_patchup import list_sites
from timm_patchup.core.sites import Site, resolve_sites, site_module


def on_meta(name: str) -> nn.Module:
    """Make a timm model without memory: enough to look at its modules."""
    with torch.device("meta"):
        return timm.create_model(name)


def stages(pattern: str, *numbers: int) -> dict[str, str]:
    return {f"stage{i}": pattern.format(number) for i, number in enumerate(numbers, start=1)}


NAMES = {
    "resnet18": {"stem": "act1", **stages("layer{}", 1, 2, 3, 4)},
    "test_convnext": {"stem": "stem", **stages("stages.{}", 0, 1, 2, 3)},
    "test_efficientnet": {"stem": "bn1", **stages("blocks.{}", 0, 1, 2, 3, 4)},
    "regnetx_002": {"stem": "stem", **stages("s{}", 1, 2, 3, 4)},
    "densenet121": {
        "stem": "features.norm0",
        **stages("features.denseblock{}", 1, 2, 3),
        "stage4": "features.norm5",
    },
    "vgg11": stages("features.{}", 1, 4, 9, 14, 19, 20),
    # feature_info names modules inside a branch: the block around them is the site.
    "legacy_xception": {"stem": "act2", **stages("block{}", 2, 3, 12), "stage4": "act4"},
    "xception41p": {"stem": "stem", **stages("blocks.{}", 0, 1, 2, 11, 12)},
    # Features pass by these cells and this stage.
    "nasnetalarge": {"stem": "conv0", "stage4": "act"},
    "pnasnet5large": {"stem": "conv_0", "stage4": "act"},
    "mobilenetv5_base": {"stem": "conv_stem", **stages("blocks.{}", 0, 1, 2)},
    # feature_info has no module for the stem, or there is none.
    "tresnet_m": {"stem": "body.conv1", **stages("body.layer{}", 1, 2, 3, 4)},
    "visformer_tiny": {"stem": "stem", **stages("stage{}", 1, 2, 3)},
    "convmixer_768_32": {"stem": "stem", **stages("blocks.{}", *range(32))},
    # A module around all stages is no block, so its stages stay what they are.
    "qwen3_vit_88m": stages("encoder.blocks.{}", *range(12)),
    "coat_tiny": {},
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_sites(name: str) -> None:
    sites = list_sites(on_meta(name))
    assert sites == {"input": "", **NAMES[name]}
    assert list(sites) == ["input", *NAMES[name]]


def test_default_is_what_the_model_has_of_the_papers_set(model: nn.Module) -> None:
    assert [site.name for site in resolve_sites(model, None)] == ["input", "stem", "stage1", "stage2"]
    assert [site.name for site in resolve_sites(on_meta("vgg11"), None)] == ["input", "stage1", "stage2"]


def test_sites_know_their_channels(model: nn.Module) -> None:
    assert resolve_sites(model, ["stage2"]) == [Site("stage2", "layer2", 48)]
    # What feature_info says of the module inside does not hold for the block around it.
    assert resolve_sites(on_meta("legacy_xception"), ["stage1"]) == [Site("stage1", "block2", None)]


def test_every_module_name_is_a_site(model: nn.Module) -> None:
    assert resolve_sites(model, ["layer1.0.conv1", "stage1"])[0] == Site("layer1.0.conv1", "layer1.0.conv1")


def test_unknown_name_lists_sites_and_nearest(model: nn.Module) -> None:
    message = r"^unknown site 'stage7': .*has the sites input, stem, stage1, .*; did you mean .*stage4"
    with pytest.raises(ValueError, match=message):
        resolve_sites(model, ["stage7"])


def test_stage_and_its_last_block_are_one_place(model: nn.Module) -> None:
    last = f"layer1.{len(model.get_submodule('layer1')) - 1}"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^sites name one place more than once: stage1, {last}$"):
        resolve_sites(model, ["stage1", "stage2", last])


def test_first_and_last_child_of_a_chain_are_two_places() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1)))
    assert [site.name for site in resolve_sites(model, ["input", "1"])] == ["input", "1"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("coat_tiny", "has no feature_info, and no modules called stages, layers or blocks"),
        ("twins_svt_small", r"has a feature_info that names modules which do not exist \(block.0, block.1, block.2\)"),
    ],
)
def test_model_without_named_sites(name: str, why: str) -> None:
    message = rf"^\w+ \({name}\) {why}, so sites=None finds nothing inside it to mix\. Give sites=\['input'\], or "
    with pytest.raises(ValueError, match=message):
        resolve_sites(on_meta(name), None)


def test_hook_goes_to_the_last_child_of_a_chain(model: nn.Module) -> None:
    layer = model.get_submodule("layer2")
    assert isinstance(layer, nn.Sequential)
    assert site_module(model, Site("stage2", "layer2")) is layer[-1]
    empty = nn.Sequential(nn.Sequential())
    assert site_module(empty, Site("0", "0")) is empty[0]
