"""Layouts: where the map (B, C, H, W) is in what a model gives; tokens and several tensors are mixed along it."""

import copy
from dataclasses import replace
from math import floor
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from tests.support import oracle
from timm_patchup import Draw, Mixer, PatchUp, create_mixer, list_sites
from timm_patchup.core.draw import Erase, Mix
from timm_patchup.core.layout import FeatureMap, by_sample, features_in, read_layouts, with_features
from timm_patchup.core.probe import outputs_at, probe
from timm_patchup.core.sites import Site, resolve_sites, site_module

_FLAT = (1, 1, 1, 1)
_NARROW = {"depth": 4, "embed_dim": 96, "num_heads": 2}
# Models of different layouts; those that take them have images that are not square.
MODELS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "test_vit": ({"img_size": (64, 96)}, (64, 96)),
    "deit_tiny_distilled_patch16_224": ({**_NARROW, "img_size": (96, 64)}, (96, 64)),
    "eva02_tiny_patch14_224": ({**_NARROW, "img_size": (56, 84)}, (56, 84)),
    "beit_base_patch16_224": ({**_NARROW, "img_size": (64, 96)}, (64, 96)),
    "naflexvit_base_patch16_gap": (_NARROW, (64, 96)),
    "vit_relpos_small_patch16_224": ({**_NARROW, "img_size": (64, 96)}, (64, 96)),
    "samvit_base_patch16_224": ({**_NARROW, "img_size": 64, "global_attn_indexes": [1]}, (64, 64)),
    "swin_tiny_patch4_window7_224": ({"depths": _FLAT, "embed_dim": 24, "img_size": (64, 96)}, (64, 96)),
    "hiera_tiny_224": ({"stages": (2, 1, 1, 1), "embed_dim": 24, "img_size": (64, 96)}, (64, 96)),
    "xcit_nano_12_p16_224": ({"depth": 4}, (64, 96)),
    "levit_128s": ({}, (224, 224)),
    "pit_ti_224": ({"img_size": 64, "depth": (1, 1, 1)}, (64, 64)),
    "tnt_s_legacy_patch16_224": ({"depth": 4, "img_size": 64}, (64, 64)),
    "crossvit_tiny_240": ({}, (240, 240)),
    "efficientvim_m1": ({}, (64, 96)),
    "test_mambaout": ({}, (96, 64)),
    "pvt_v2_b0": ({}, (64, 96)),
}
KNOWN = [name for name in MODELS if timm.is_model(name)]  # a release of timm may lack one
LABELS = torch.tensor([1, 2, 3])


def make(name: str) -> tuple[nn.Module, Tensor]:
    """Make a model in eval mode, and a batch for it."""
    settings, size = MODELS[name]
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=10, **settings).eval(), torch.randn(3, 3, *size)


# What timm reads


def test_models_are_found() -> None:
    assert len(KNOWN) >= 12


@pytest.mark.parametrize("name", KNOWN)
def test_map_is_the_one_that_timm_reads(name: str) -> None:
    model, x = make(name)
    if not hasattr(model, "forward_intermediates"):
        pytest.skip("this release of timm does not offer it for the model")
    sites = resolve_sites(model, [site for site in list_sites(model) if site.startswith("stage")])
    maps = probe(model, sites, x)
    with torch.no_grad():
        outputs = outputs_at(model, sites, x)
        theirs = model.forward_intermediates(x, output_fmt="NCHW", intermediates_only=True)  # type: ignore[operator]
    found = []
    for site, (output,) in zip(sites, outputs):
        ours = [
            layout.to_nchw(by_sample(tensor, len(x)))
            for layout, tensor in zip(maps[site.name], features_in(output), strict=True)
        ]
        equal = [i for i, their in enumerate(theirs) if any(torch.equal(their, our) for our in ours if our.numel())]
        assert equal, f"{site} is nowhere in what timm reads"
        found.append(equal[0])
    assert found == sorted(set(found)), "each in its turn"


# Prefix tokens


def at_site(mix: Mixer, x: Tensor, draw: Draw | None = None) -> tuple[list[Tensor], list[Tensor], Draw]:
    """Run a batch; return what the mixer's one site gave, what the mixer made of it, and the draw."""
    module = site_module(mix.model, mix.sites[0])
    seen: list[list[Tensor]] = []

    def record(module: nn.Module, args: object, output: object) -> None:
        seen.append([by_sample(tensor.detach().clone(), len(x)) for tensor in features_in(output)])

    mix.model.training = True  # its modules stay in eval mode: only the mixer makes a difference
    mixed, target = mix(x, LABELS[: len(x)], draw=draw)
    handles = [module.register_forward_hook(record, prepend=True), module.register_forward_hook(record)]
    mix.loss(mix.model(mixed), target).backward()
    for handle in handles:
        handle.remove()
    assert mix.draw is not None
    before, after = seen
    return before, after, mix.draw


PREFIXED = {"test_vit": 1, "deit_tiny_distilled_patch16_224": 2, "eva02_tiny_patch14_224": 1}


@pytest.mark.parametrize("mask", ["batch", "sample"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("name", PREFIXED)
def test_prefix_tokens_are_mixed_as_the_target_is(name: str, mode: str, mask: str) -> None:
    model, x = make(name)
    settings = {"mask": mask, "prob": 1.0, "sites": ["stage2"], "block_size": 2, "gamma": 0.3}
    mix = PatchUp(model, mode=mode, **settings)  # type: ignore[arg-type]
    at_site(mix, x)
    (before,), (after,), draw = at_site(mix, x, replace(mix.draw, partner=torch.tensor([1, 2, 0])))  # type: ignore[type-var]
    assert draw.changed is not None
    assert draw.kept.min() > 0.0
    assert draw.kept.max() < 1.0
    assert (draw.lam > 0.0) == (mode == "soft")
    own = (draw.kept + (1.0 - draw.kept) * draw.lam).view(-1, 1, 1)
    prefix = slice(0, PREFIXED[name])
    expected = own * before[:, prefix] + (1.0 - own) * before[draw.partner][:, prefix]
    torch.testing.assert_close(after[:, prefix], expected)
    target = mix._batch.target  # type: ignore[union-attr]
    torch.testing.assert_close(target[torch.arange(3), LABELS], own.flatten().expand(3))
    # The rest is the paper's mix of the grid, row by row.
    rows, columns = (side // (14 if "14" in name else 16) for side in x.shape[2:])
    grid = before[:, PREFIXED[name] :].transpose(1, 2).reshape(3, -1, rows, columns)
    mixed = torch.where(draw.changed, draw.lam * grid + (1.0 - draw.lam) * grid[draw.partner], grid)
    torch.testing.assert_close(after[:, PREFIXED[name] :], mixed.flatten(2).transpose(1, 2))


def test_erasing_leaves_prefix_tokens_as_they_are() -> None:
    model, x = make("deit_tiny_distilled_patch16_224")
    mix = create_mixer("dropblock", model, prob=1.0, sites=["stage2"], block_size=2)
    (before,), (after,), draw = at_site(mix, x)
    assert isinstance(draw.change, Erase)
    assert draw.change.scale > 1.0
    torch.testing.assert_close(after[:, :2], before[:, :2])
    erased = draw.change.changed.flatten(2).transpose(1, 2).expand_as(before[:, 2:])
    assert erased.any()
    torch.testing.assert_close(after[:, 2:], torch.where(erased, 0.0, before[:, 2:] * draw.change.scale))


def test_everything_mixed_mixes_prefix_tokens_too() -> None:
    model, x = make("test_vit")
    mix = create_mixer("manifold_mixup", model, prob=1.0, sites=["stage2"])
    (before,), (after,), draw = at_site(mix, x)
    torch.testing.assert_close(after, draw.lam * before + (1.0 - draw.lam) * before[draw.partner])


# Gradients


@pytest.mark.parametrize("mask", ["batch", "sample"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("name", ["test_vit", "hiera_tiny_224", "pit_ti_224", "tnt_s_legacy_patch16_224"])
def test_gradient_is_that_of_plain_autograd(name: str, mode: str, mask: str) -> None:
    model, x = make(name)
    model, x = model.double(), x.double()
    nn.init.normal_(model.get_classifier().weight)  # type: ignore[operator]  # Hiera starts with zeros
    clean = copy.deepcopy(model)
    settings = {"mask": mask, "prob": 1.0, "sites": ["stage2"], "block_size": 2, "gamma": 0.3}
    mix = PatchUp(model, mode=mode, **settings)  # type: ignore[arg-type]
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    at_site(mix, x)
    _, _, draw = at_site(mix, x, replace(mix.draw, partner=torch.tensor([1, 2, 0])))  # type: ignore[type-var]
    model.zero_grad()
    mixed, target = mix(ours, LABELS, draw=draw)
    loss = mix.loss(model(mixed), target)

    partners_weight = (1.0 - torch.tensor(draw.lam)).double()  # a mixer's lam is float32

    def plain(module: nn.Module, args: object, output: Any) -> Any:
        mixed = []
        for tensor, layout in zip(features_in(output), draw.layouts, strict=True):
            rows = by_sample(tensor, 3)
            share = layout.lay_out(layout.fit(draw.changed), 1.0 - draw.kept).double() * partners_weight  # type: ignore[arg-type]
            mixed.append(((1.0 - share) * rows + share * rows[draw.partner]).reshape(tensor.shape))
        return with_features(output, mixed)

    site_module(clean, mix.sites[0]).register_forward_hook(plain)
    expected = 2.0 * nn.functional.cross_entropy(clean(theirs), target)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0.0)
    loss.backward()
    expected.backward()
    assert ours.grad is not None
    assert ours.grad.any()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    for (key, one), (_, other) in zip(model.named_parameters(), clean.named_parameters()):
        torch.testing.assert_close(
            one.grad, other.grad, rtol=1e-9, atol=1e-12, msg=lambda text, at=key: f"{at}: {text}"
        )


# Several tensors


class Branches(nn.Module):
    """Gives a map, a coarser one with more channels and a state of the whole image, then joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = Split()
        self.head = nn.Linear(4 + 6 + 5, 10)
        self.num_classes = 10

    def forward(self, x: Tensor) -> Tensor:
        fine, coarse, size, state = self.branches(x)
        assert size == (8, 12)
        return self.head(torch.cat([fine.mean((2, 3)), coarse.mean((2, 3)), state.mean(1)], dim=1))


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 4, 8, stride=8), nn.Conv2d(3, 6, 32, stride=32)
        self.state = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[int, int], Tensor]:
        fine = self.fine(x)
        return (
            fine,
            self.coarse(x),
            (fine.shape[2], fine.shape[3]),
            self.state(x.mean((2, 3)))[:, None].expand(-1, 2, -1),
        )


def nearest(place: int, size: int, of: int) -> int:
    """Return which of ``of`` places along a side the middle of a place is in, if the side has ``size`` places."""
    return floor((place + 0.5) / size * of)


@pytest.mark.parametrize("mask", ["batch", "sample"])
def test_several_tensors_share_one_mask_and_count_by_their_features(mask: str) -> None:
    torch.manual_seed(0)
    model = Branches().eval()
    mix = PatchUp(model, prob=1.0, sites=["branches"], block_size=3, gamma=0.4, mask=mask)
    before, after, draw = at_site(mix, torch.randn(3, 3, 64, 96))
    assert draw.layouts == (FeatureMap(4, 8, 12), FeatureMap(6, 2, 3), FeatureMap(5, 0, 0, prefix=2))
    fine = draw.changed
    assert fine is not None
    assert fine.shape == (1 if mask == "batch" else 3, 4, 8, 12), "drawn for the widest"
    coarse = torch.zeros(len(fine), 6, 2, 3, dtype=torch.bool)
    for c, row, column in torch.cartesian_prod(torch.arange(6), torch.arange(2), torch.arange(3)).tolist():
        coarse[:, c, row, column] = fine[:, nearest(c, 6, 4), nearest(row, 2, 8), nearest(column, 3, 12)]
    assert coarse.any()
    for changed, own, mixed in zip((fine, coarse), before, after):
        assert torch.equal(mixed, torch.where(changed, own[draw.partner], own))
    altered = fine.flatten(1).sum(1) + coarse.flatten(1).sum(1)
    kept = 1.0 - altered / (4 * 8 * 12 + 6 * 2 * 3)
    torch.testing.assert_close(draw.kept, kept.squeeze(0) if mask == "batch" else kept)
    own = kept.view(-1, 1, 1)
    torch.testing.assert_close(after[2], own * before[2] + (1.0 - own) * before[2][draw.partner])


# Tokens in another order


@pytest.mark.parametrize("size", [(64, 64), (64, 96)])
def test_mixed_places_of_hiera_are_blocks_of_the_image(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    small = {"stages": _FLAT, "embed_dim": 24, "img_size": size}
    model = timm.create_model("hiera_tiny_224", num_classes=10, **small).eval()
    mix = PatchUp(model, prob=1.0, gamma=0.2, sites=["stage1"], block_size=3)
    x = torch.randn(2, 3, *size)
    at_site(mix, x)
    (before,), (after,), _ = at_site(mix, x, replace(mix.draw, partner=torch.tensor([1, 0])))  # type: ignore[type-var]
    rows, columns = size[0] // 4, size[1] // 4
    # Where the model itself puts the tokens of its patches before the first block, which pools nothing.
    places = model.unroll(torch.arange(rows * columns).view(1, -1, 1)).flatten()
    assert not torch.equal(places, torch.arange(len(places)))
    altered = torch.zeros(24, rows * columns, dtype=torch.bool)
    altered[:, places] = (after != before)[0].T
    altered = altered.view(24, rows, columns)
    assert altered.any(dim=(1, 2)).sum() > 12
    assert all(oracle.is_made_of_blocks(plane, 3) for plane in altered.tolist())
    assert mix.draw is not None
    assert mix.draw.changed is not None
    assert torch.equal(mix.draw.changed[0], altered)


# Grids that are not stated


@pytest.mark.parametrize(
    ("tokens", "size", "expected"),
    [
        (37, (96, 96), (1, 6, 6)),
        (38, (96, 96), (2, 6, 6)),
        (43, (96, 96), None),  # not a class token and a grid of 6 x 7: the grid of a square image is square
        (42, (96, 96), None),
        (24, (64, 96), (0, 4, 6)),
        (25, (64, 96), (1, 4, 6)),  # not 5 x 5
        (26, (64, 96), (2, 4, 6)),
        (19, (60, 100), (1, 3, 6)),  # patches of 16 that leave a rest
        (29, (60, 100), (1, 4, 7)),
    ],
)
def test_unstated_prefix_needs_the_grid_of_one_stride(
    tokens: int, size: tuple[int, int], expected: tuple[int, int, int] | None
) -> None:
    images = torch.zeros(2, 3, *size)
    found = read_layouts(torch.randn(2, tokens, 8), images=images, channels=None, prefixes=(0, 1, 2))
    if expected is None:
        assert found is None
    else:
        prefix, rows, columns = expected
        assert found == (FeatureMap(8, rows, columns, prefix=prefix),)


# Masks by hand


def test_mask_is_laid_out_as_the_tensor_is() -> None:
    mask = torch.tensor([[True, False, False], [False, False, True]]).view(1, 1, 2, 3)
    share = torch.tensor(0.25)
    assert FeatureMap(4, 2, 3, nhwc=True).lay_out(mask, share).shape == (1, 2, 3, 1)
    flat = [True, False, False, False, False, True]
    assert FeatureMap(4, 2, 3, prefix=0).lay_out(mask, share).flatten().tolist() == flat
    assert FeatureMap(4, 2, 3, prefix=2).lay_out(mask, share).flatten().tolist() == [0.25, 0.25, *map(float, flat)]
    order = torch.tensor([3, 0, 1, 2, 4, 5])  # the first place is the fourth token
    ordered = FeatureMap(4, 2, 3, prefix=0, order=order).lay_out(mask, share).flatten().tolist()
    assert ordered == [False, False, False, True, False, True]
    everything = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    assert FeatureMap(4, 2, 3, prefix=2).lay_out(everything, share).all()
    shares = FeatureMap(4, 2, 3, prefix=1).lay_out(mask, torch.tensor([0.1, 0.2]))
    torch.testing.assert_close(shares[:, 0, 0], torch.tensor([0.1, 0.2]))
    assert shares[:, 1:, 0].tolist() == [list(map(float, flat))] * 2


def test_order_of_tokens_reads_and_writes_the_same_places() -> None:
    order = torch.randperm(6)
    layout = FeatureMap(2, 2, 3, prefix=1, order=order)
    mask = torch.rand(1, 2, 2, 3) < 0.5
    laid_out = layout.lay_out(mask, torch.tensor(0.5))
    assert torch.equal(layout.to_nchw(laid_out), mask.float())


def test_site_before_prefix_tokens_has_none() -> None:
    """A model states its prefix tokens for all blocks; in front of them its patches have none yet."""
    model, x = make("deit_tiny_distilled_patch16_224")
    sites = [Site("stem", "patch_embed"), Site("block", "blocks.0")]
    maps = probe(model, sites, x)
    assert maps["stem"] == (FeatureMap(96, 6, 4, prefix=0),)
    assert maps["block"] == (FeatureMap(96, 6, 4, prefix=2),)


def test_swap_of_a_draw_made_by_hand_reaches_a_token() -> None:
    model, x = make("test_vit")
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    changed = torch.zeros(1, 1, 4, 6, dtype=torch.bool)
    changed[..., 1, 2] = True
    (before,), (after,), draw = at_site(mix, x, Draw("stage1", torch.tensor([1, 2, 0]), Mix(changed)))
    token = 1 + 1 * 6 + 2
    assert torch.equal(after[:, token], before[draw.partner][:, token])
    others = [i for i in range(1, 25) if i != token]
    assert torch.equal(after[:, others], before[:, others])
    assert draw.kept.item() == pytest.approx(23 / 24)
