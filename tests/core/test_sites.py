"""Sites: names become modules, and a probe says what these give without leaving a trace in the model."""

import re
from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn

from timm_patchup import PatchUp, list_sites
from timm_patchup.sites import FeatureMap, Site, probe, resolve_sites, site_module


def on_meta(name: str) -> nn.Module:
    """Make a timm model without memory: enough to look at its modules."""
    with torch.device("meta"):
        return timm.create_model(name)


def stages(pattern: str, *numbers: int) -> dict[str, str]:
    return {f"stage{i}": pattern.format(number) for i, number in enumerate(numbers, start=1)}


# ---- names


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
    message = r"^unknown site 'stage7': .*has the sites input, stem, stage1, .*; nearest: .*stage4"
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


# ---- what a probe finds


class Net(nn.Module):
    """A convolution ``features`` of stride 8, then ``shape`` in the layout or form that a test asks for, and a head."""

    def __init__(self, channels: int, give: Callable[[Tensor], object] = lambda x: x, calls: int = 1) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, channels, 9, stride=8, padding=4), nn.BatchNorm2d(channels))
        self.shape = Form(give)
        self.calls = calls
        self.head = nn.Linear(channels, 2)
        self.num_classes = 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        for _ in range(self.calls):
            self.shape(x)
        return self.head(x.mean((2, 3)))


class Form(nn.Module):
    def __init__(self, give: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.give = give

    def forward(self, x: Tensor) -> object:
        return self.give(x)


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def probed(model: nn.Module, height: int, width: int, *, channels: int | None = None) -> FeatureMap:
    return probe(model, [Site("here", "shape", channels)], torch.zeros(1, 3, height, width))["here"]


# Sizes of images whose maps are cubes, have sides that fit either way, or are plain.
SIZES = [(8, 64, 64), (8, 128, 256), (5, 64, 64), (16, 32, 48), (6, 200, 56)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("channels", "height", "width"), SIZES)
@pytest.mark.parametrize("known", [True, False])
def test_layouts_are_told_apart(channels: int, height: int, width: int, known: bool, seed: int) -> None:
    torch.manual_seed(seed)
    for give, nhwc in ((lambda x: x, False), (channels_last, True)):
        found = probed(Net(channels, give), height, width, channels=channels if known else None)
        assert found == FeatureMap(channels, height // 8, width // 8, nhwc)


@pytest.mark.parametrize(
    ("name", "size", "side", "nhwc"),
    [("test_mambaout", 64, 16, True), ("pvt_v2_b0", 128, 32, True), ("starnet_s050", 64, 32, False)],
)
def test_layouts_of_cubes_in_timm(
    name: str, size: int, side: int, nhwc: bool, make_model: Callable[..., nn.Module]
) -> None:
    model = make_model(name)
    found = probe(model, resolve_sites(model, ["stem"]), torch.zeros(1, 3, size, size))
    assert found["stem"] == FeatureMap(side, side, side, nhwc)


def test_layout_does_not_depend_on_the_batch() -> None:
    net = Net(8, channels_last)
    for x in (torch.zeros(1, 3, 64, 64), torch.full((2, 3, 64, 64), float("nan")), torch.ones(3, 3, 64, 64)):
        assert probe(net, [Site("here", "shape")], x)["here"] == FeatureMap(8, 8, 8, nhwc=True)


def test_wrong_number_of_channels_is_not_believed() -> None:
    assert probed(Net(8), 64, 96, channels=77) == FeatureMap(8, 8, 12)


def test_probe_finds_the_default_sites(model: nn.Module, images: Tensor) -> None:
    assert probe(model, resolve_sites(model, None), images) == {
        "input": FeatureMap(3, 64, 48),
        "stem": FeatureMap(32, 32, 24),
        "stage1": FeatureMap(32, 16, 12),
        "stage2": FeatureMap(48, 8, 6),
    }


def test_one_mixer_takes_images_of_two_sizes(model: nn.Module) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    for height, width in ((64, 64), (32, 96), (64, 64)):
        x, target = mix(torch.randn(2, 3, height, width), torch.tensor([0, 1]))
        mix.loss(model(x), target).backward()
        assert mix.draw is not None
        assert mix.draw.changed is not None
        assert mix.draw.changed.shape == (1, 32, height // 4, width // 4)


def test_probe_of_a_model_in_half_precision(model: nn.Module, images: Tensor) -> None:
    found = probe(model.bfloat16(), resolve_sites(model, ["stem"]), images)
    assert found["stem"] == FeatureMap(32, 32, 24)


def test_probe_of_a_model_compiled_in_place(model: nn.Module, images: Tensor) -> None:
    torch._dynamo.reset()
    model.compile(backend="eager")
    with torch.no_grad():
        model.eval()(images[:2])  # a graph that has no hooks, and that fits a probe too
    assert probe(model, resolve_sites(model, ["stem"]), images)["stem"] == FeatureMap(32, 32, 24)


@pytest.mark.parametrize(
    ("give", "told"),
    [
        (lambda x: x.flatten(2).mT, "tokens (B, N, C) = (B, 64, 5)"),
        (lambda x: (x, x[..., 0]), "a tuple of 2: (B, 5, 8, 8), (B, 5, 8)"),
        (lambda x: [x, x, 3], "a list of 3: (B, 5, 8, 8), (B, 5, 8, 8), int"),
        (lambda x: {"x": x}, "a dict"),
        (lambda x: x.mean((2, 3)), "a tensor (B, 5)"),
        (lambda x: x[:, :, :3], "a tensor (B, 5, 3, 8)"),
    ],
)
def test_site_that_gives_no_map(give: Callable[[Tensor], object], told: str) -> None:
    message = (
        f"site 'here' (module 'shape' of Net) gives {told}, mixing needs one map (B, C, H, W) or (B, H, W, C). "
        f"Give sites=['input'], which can be mixed, or name other modules"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        probed(Net(5, give), 64, 64)


@pytest.mark.parametrize(("calls", "told"), [(0, "is never called"), (2, "is called 2 times")])
def test_site_that_does_not_run_exactly_once(calls: int, told: str) -> None:
    with pytest.raises(ValueError, match=f"^site 'here' .* {told} in a forward pass, mixing needs exactly one call"):
        probed(Net(5, calls=calls), 64, 64)


def test_error_offers_the_sites_that_give_maps() -> None:
    net = Net(5, lambda x: [x])
    sites = [Site("a", "features.0"), Site("b", "shape"), Site("c", "features"), Site("d", "head")]
    with pytest.raises(ValueError, match=r"^site 'b' .*\. Give sites=\['input', 'a', 'c'\], which can be mixed"):
        probe(net, sites, torch.zeros(1, 3, 64, 64))


# ---- what a probe leaves behind: nothing


class Careless(Net):
    """A net that draws random numbers in eval mode too, and that can break after its features have run."""

    breaks = False
    kept_a_graph = False

    def forward(self, x: Tensor) -> Tensor:
        self.kept_a_graph = torch.is_grad_enabled()
        x = nn.functional.dropout(x)
        output = super().forward(x)
        if self.breaks:
            raise RuntimeError("broken in the middle")
        return output


@pytest.mark.parametrize("breaks", [False, True])
def test_probe_leaves_no_trace(breaks: bool) -> None:
    net = Careless(5).train()
    net.features[1].eval()
    net.head.requires_grad_(False)
    net(torch.randn(4, 3, 16, 16)).sum().backward()
    net.breaks = breaks
    state = {name: value.clone() for name, value in net.state_dict().items()}
    grads = [None if weight.grad is None else weight.grad.clone() for weight in net.parameters()]
    flags = [module.training for module in net.modules()]
    assert len(set(flags)) == 2
    randomness = torch.get_rng_state()
    if breaks:
        with pytest.raises(RuntimeError, match=r"^broken in the middle$"):
            probed(net, 64, 64)
    else:
        probed(net, 64, 64)
    assert torch.equal(torch.get_rng_state(), randomness)
    assert [module.training for module in net.modules()] == flags
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    for weight, grad in zip(net.parameters(), grads):
        assert weight.grad is None if grad is None else torch.equal(weight.grad, grad)
    assert not any(module._forward_hooks for module in net.modules())
    assert not net.kept_a_graph


def test_probe_does_not_move_running_statistics(model: nn.Module, images: Tensor) -> None:
    model(images)
    before = {name: value.clone() for name, value in model.named_buffers()}
    assert any(name.endswith("num_batches_tracked") and value == 1 for name, value in before.items())
    probe(model, resolve_sites(model, None), images)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert all(module.training for module in model.modules())
