"""The probe finds what a site gives, in which layout, and leaves no trace in the model."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from timm_patchup import PatchUp
from timm_patchup.core.layout import FeatureMap
from timm_patchup.core.probe import probe
from timm_patchup.core.sites import Site, resolve_sites
from timm_patchup.errors import SiteError


class Net(nn.Module):
    """A convolution ``features`` of stride 8, then ``shape`` in the layout or form that a test needs, and a head."""

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
    (layout,) = probe(model, [Site("here", "shape", channels)], torch.zeros(1, 3, height, width))["here"]
    return layout


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
    assert found["stem"] == (FeatureMap(side, side, side, nhwc),)


def test_layout_does_not_depend_on_the_batch() -> None:
    net = Net(8, channels_last)
    for x in (torch.zeros(1, 3, 64, 64), torch.full((2, 3, 64, 64), float("nan")), torch.ones(3, 3, 64, 64)):
        assert probe(net, [Site("here", "shape")], x)["here"] == (FeatureMap(8, 8, 8, nhwc=True),)


def test_wrong_number_of_channels_is_not_believed() -> None:
    assert probed(Net(8), 64, 96, channels=77) == FeatureMap(8, 8, 12)


def test_probe_finds_the_default_sites(model: nn.Module, images: Tensor) -> None:
    assert probe(model, resolve_sites(model, None), images) == {
        "input": (FeatureMap(3, 64, 48),),
        "stem": (FeatureMap(32, 32, 24),),
        "stage1": (FeatureMap(32, 16, 12),),
        "stage2": (FeatureMap(48, 8, 6),),
    }


@pytest.mark.parametrize("size", [(70, 500), (98, 300), (50, 600), (600, 50)])
def test_sides_that_are_rounded_keep_their_map(model: nn.Module, size: tuple[int, int]) -> None:
    """In a wide image, one row more or less is worth many columns."""
    maps = probe(model, resolve_sites(model, None), torch.zeros(1, 3, *size))
    for name in ("stem", "stage1", "stage2"):
        (layout,) = maps[name]
        assert not layout.nhwc
        assert (layout.height < layout.width) == (size[0] < size[1])


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
    assert found["stem"] == (FeatureMap(32, 32, 24),)


def test_probe_of_a_model_compiled_in_place(model: nn.Module, images: Tensor) -> None:
    torch._dynamo.reset()
    model.compile(backend="eager")
    with torch.no_grad():
        model.eval()(images[:2])  # a graph without hooks that would fit a probe, too
    assert probe(model, resolve_sites(model, ["stem"]), images)["stem"] == (FeatureMap(32, 32, 24),)


@pytest.mark.parametrize(
    ("give", "told"),
    [
        (lambda x: x.flatten(2).mT[:, :40], "tokens (B, N, C) = (B, 40, 5)"),
        (lambda x: (x, x[..., 0, 0]), "a tuple of 2: (B, 5, 8, 8), (B, 5)"),
        (lambda x: [x, x[:, :, :3], 3], "a list of 3: (B, 5, 8, 8), (B, 5, 3, 8), int"),
        (lambda x: (x.argmax(1), 3), "a tuple of 2: (B, 8, 8), int"),
        (lambda x: [], "a list of 0: "),
        (lambda x: {"x": x}, "a dict"),
        (lambda x: x.mean((2, 3)), "a tensor (B, 5)"),
        (lambda x: x[:, :, :3], "a tensor (B, 5, 3, 8)"),
    ],
)
def test_site_that_gives_no_map(give: Callable[[Tensor], object], told: str) -> None:
    message = (
        f"site 'here' (module 'shape' of Net) gives {told}, mixing needs maps (B, C, H, W) or (B, H, W, C), or "
        f"tokens of a grid. "
        f"Give sites=['input'], which can be mixed, or name other modules"
    )
    with pytest.raises(SiteError, match=f"^{re.escape(message)}$") as caught:
        probed(Net(5, give), 64, 64)
    assert caught.value.site == "here"
    assert caught.value.reason == message.partition(". Give")[0]
    assert caught.value.usable == ("input",)


@pytest.mark.parametrize(("calls", "told"), [(0, "is never called"), (2, "is called 2 times")])
def test_site_that_does_not_run_exactly_once(calls: int, told: str) -> None:
    with pytest.raises(
        SiteError, match=f"^site 'here' .* {told} in a forward pass, mixing needs exactly one call"
    ) as caught:
        probed(Net(5, calls=calls), 64, 64)
    assert caught.value.reason.endswith(f"{told} in a forward pass, mixing needs exactly one call")


def test_error_offers_the_sites_that_give_maps() -> None:
    net = Net(5, lambda x: {"x": x})
    sites = [Site("a", "features.0"), Site("b", "shape"), Site("c", "features"), Site("d", "head")]
    with pytest.raises(
        SiteError, match=r"^site 'b' .*\. Give sites=\['input', 'a', 'c'\], which can be mixed"
    ) as caught:
        probe(net, sites, torch.zeros(1, 3, 64, 64))
    assert (caught.value.site, caught.value.usable) == ("b", ("input", "a", "c"))
    # The fields need no message: code that decides something reads them alone.
    assert isinstance(caught.value, ValueError)
    assert caught.value.problems == [str(caught.value)]


# What a probe leaves behind: nothing


class Careless(Net):
    """A net that draws random numbers in eval mode, too, and can fail after its features have run."""

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
