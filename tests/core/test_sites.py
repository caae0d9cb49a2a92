"""Sites: names become modules of a model, and an unknown name ends in an error with the nearest."""

import copy
from collections.abc import Sequence

import pytest
import timm
import torch
from torch import nn

from timm_patchup import list_sites
from timm_patchup.core.sites import Site, resolve_sites, site_module
from timm_patchup.errors import SiteError


def on_meta(name: str) -> nn.Module:
    """Make a timm model without memory: enough to look at its modules."""
    try:
        with torch.device("meta"):
            return timm.create_model(name)
    except NotImplementedError:  # older releases of torch lack an operator there
        return timm.create_model(name)


def stages(pattern: str, *numbers: int) -> dict[str, str]:
    return {f"stage{i}": pattern.format(number) for i, number in enumerate(numbers, start=1)}


class Block(nn.Module):
    """A module that defines a forward and named children: not a chain."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


def chain(*children: nn.Module) -> nn.Sequential:
    return nn.Sequential(*children)


def leaves(*names: str) -> dict[str, nn.Module]:
    return {name: nn.Identity() for name in names}


def net(listed: Sequence[str] | None, **children: nn.Module) -> nn.Module:
    """Make a model with these modules, whose feature_info lists some of them; None for one without feature_info."""
    model = Block(**children)
    if listed is not None:
        model.feature_info = [{"module": name, "num_chs": 8} for name in listed]  # type: ignore[assignment]
    return model


def blocks(count: int) -> nn.Sequential:
    return chain(*(nn.Identity() for _ in range(count)))


# Models as timm has them, reduced to what sites depend on: its own may change with any release.
BY_HAND: dict[str, tuple[nn.Module, dict[str, str]]] = {
    "stem and stages": (
        net(["act1", "layer1", "layer2"], **leaves("act1", "layer1", "layer2")),
        {"stem": "act1", **stages("layer{}", 1, 2)},
    ),
    "stages in a chain": (
        net(["stem", "stages.0", "stages.1"], **leaves("stem"), stages=blocks(2)),
        {"stem": "stem", **stages("stages.{}", 0, 1)},
    ),
    "stem not listed": (
        net(["blocks.0", "blocks.1"], **leaves("conv_stem", "bn1"), blocks=blocks(2)),
        {"stem": "bn1", **stages("blocks.{}", 0, 1)},
    ),
    "stem listed without a module": (
        net(["", "body.layer1", "body.layer2"], body=Block(**leaves("conv1", "layer1", "layer2"))),
        {"stem": "body.conv1", **stages("body.layer{}", 1, 2)},
    ),
    "no stem": (net(["features.1", "features.4"], features=blocks(6)), stages("features.{}", 1, 4)),
    "listed inside a branch": (
        net(
            ["act2", "block2.rep.0", "block3.rep.0"],
            **leaves("act2"),
            block2=Block(rep=blocks(2)),
            block3=Block(rep=blocks(2)),
        ),
        {"stem": "act2", **stages("block{}", 2, 3)},
    ),
    # A module around all stages is no block, so its stages stay what they are.
    "a module around all stages": (
        net(["encoder.blocks.0", "encoder.blocks.1"], encoder=Block(blocks=blocks(2))),
        stages("encoder.blocks.{}", 0, 1),
    ),
    "listed names do not exist": (
        net(["block.0", "block.1"], **leaves("stem"), stages=blocks(3)),
        {"stem": "stem", **stages("stages.{}", 0, 1, 2)},
    ),
    "no feature_info, stages by name": (
        net(None, **leaves("patch_embed", "layer1", "layer2", "head")),
        {"stem": "patch_embed", **stages("layer{}", 1, 2)},
    ),
    # A ModuleList is never called, what it holds is.
    "stages in a list": (
        net(["stages"], stages=nn.ModuleList([nn.Identity(), nn.Identity()])),
        stages("stages.{}", 0, 1),
    ),
    "no feature_info, nothing by name": (net(None, **leaves("first", "second")), {}),
    "listed names do not exist, nothing by name": (net(["block.0", "block.1"], **leaves("first", "second")), {}),
}


class NASNetALarge(Block):
    """The name is what counts: every cell of the NASNets reads the two cells before it."""


def test_sites_that_features_bypass_are_left_out() -> None:
    model = NASNetALarge(**leaves("conv0", "cell_stem_1", "cell_5", "act"))
    model.feature_info = [{"module": name} for name in ("conv0", "cell_stem_1", "cell_5", "act")]  # type: ignore[assignment]
    assert list_sites(model) == {"input": "", "stem": "conv0", "stage3": "act"}


@pytest.mark.parametrize("case", BY_HAND)
def test_names_of_sites(case: str) -> None:
    model, expected = BY_HAND[case]
    sites = list_sites(model)
    assert sites == {"input": "", **expected}
    assert list(sites) == ["input", *expected]


# The release of timm in which the modules below were looked up.
LOOKED_UP_IN = "1.0.31"
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
    "legacy_xception": {"stem": "act2", **stages("block{}", 2, 3, 12), "stage4": "act4"},
    "xception41p": {"stem": "stem", **stages("blocks.{}", 0, 1, 2, 11, 12)},
    "nasnetalarge": {"stem": "conv0", "stage4": "act"},
    "pnasnet5large": {"stem": "conv_0", "stage4": "act"},
    "mobilenetv5_base": {"stem": "conv_stem", **stages("blocks.{}", 0, 1, 2)},
    "tresnet_m": {"stem": "body.conv1", **stages("body.layer{}", 1, 2, 3, 4)},
    "visformer_tiny": {"stem": "stem", **stages("stage{}", 1, 2, 3)},
    "convmixer_768_32": {"stem": "stem", **stages("blocks.{}", *range(32))},
    "qwen3_vit_88m": {"stem": "encoder.patch_embed", **stages("encoder.blocks.{}", 2, 5, 8, 11)},
    "coat_tiny": {"stem": "patch_embed1", **stages("serial_blocks{}.1", 1, 2)},
    "vit_tiny_patch16_224": {"stem": "patch_embed", **stages("blocks.{}", 2, 5, 8, 11)},
    "hiera_tiny_224": {"stem": "patch_embed", **stages("blocks.{}", 0, 2, 9, 11)},
    "crossvit_tiny_240": stages("blocks.{}", 0, 1, 2),
    "tnt_s_patch16_224": {"stem": "pixel_embed", **stages("blocks.{}", 2, 5, 8, 11)},
    "pit_ti_224": {"stem": "patch_embed", **stages("transformers.{}", 0, 1, 2)},
    "efficientvim_m1": {"stem": "patch_embed", "stage1": "stages.0"},
    "twins_svt_small": {
        "stem": "patch_embeds.0",
        **{f"stage{i + 1}": f"blocks.{i}.{last}" for i, last in enumerate((1, 1, 9, 3))},
    },
}


def test_names_of_sites_in_timm() -> None:
    """In any release sites are modules, in order; in the one that was looked up they are these modules."""
    found = {name: list_sites(on_meta(name)) for name in NAMES if timm.is_model(name)}
    assert len(found) >= 8
    for name, sites in found.items():
        modules = dict(on_meta(name).named_modules())
        assert list(sites) == ["input", *sorted((set(sites) - {"input"}), key=site_order)], name
        assert all(module in modules for module in sites.values()), name
        assert len(set(sites.values())) == len(sites), name
        if timm.__version__ == LOOKED_UP_IN:
            assert sites == {"input": "", **NAMES[name]}, name


def site_order(name: str) -> int:
    return 0 if name == "stem" else int(name.removeprefix("stage"))


def test_default_is_what_the_model_has_of_the_papers_set(model: nn.Module) -> None:
    assert [site.name for site in resolve_sites(model, None)] == ["input", "stem", "stage1", "stage2"]
    assert [site.name for site in resolve_sites(BY_HAND["no stem"][0], None)] == ["input", "stage1", "stage2"]


def test_sites_know_their_channels(model: nn.Module) -> None:
    assert resolve_sites(model, ["stage2"]) == [Site("stage2", "layer2", 48)]
    # What feature_info states of the module inside does not hold for the block around it.
    in_branch, _ = BY_HAND["listed inside a branch"]
    assert resolve_sites(in_branch, ["stem", "stage1"]) == [Site("stem", "act2", 8), Site("stage1", "block2", None)]


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
    ("case", "why"),
    [
        (
            "no feature_info, nothing by name",
            "has no feature_info, and no modules called stages, layers, blocks or features",
        ),
        (
            "listed names do not exist, nothing by name",
            r"has a feature_info that names modules which do not exist \(block.0, block.1\)",
        ),
    ],
)
@pytest.mark.parametrize("name", ["", "coat_tiny"])
def test_model_without_named_sites(name: str, case: str, why: str) -> None:
    model = copy.deepcopy(BY_HAND[case][0])
    model.pretrained_cfg = {"architecture": name}  # type: ignore[assignment]
    called = rf"Block \({name}\)" if name else "Block"
    message = (
        rf"^{called} {why}, so it has no default sites inside it\. Give sites=\['input'\], which can be mixed, or "
    )
    with pytest.raises(SiteError, match=message) as caught:
        resolve_sites(model, None)
    assert "Give --mix-sites input, which can be mixed" in caught.value.for_caller("--mix-sites")


def test_hook_goes_to_the_last_child_of_a_chain(model: nn.Module) -> None:
    layer = model.get_submodule("layer2")
    assert isinstance(layer, nn.Sequential)
    assert site_module(model, Site("stage2", "layer2")) is layer[-1]
    empty = nn.Sequential(nn.Sequential())
    assert site_module(empty, Site("0", "0")) is empty[0]
