"""Layouts: where the map (B, C, H, W) is in what a model gives, and how masks and gradients follow it."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from timm_patchup import PatchUp, list_sites
from timm_patchup.core.layout import FeatureMap, by_sample, features_in, read_layouts, with_features
from timm_patchup.core.probe import outputs_at, probe
from timm_patchup.core.sites import resolve_sites, site_module

from .layout_models import KNOWN, LABELS, at_site, make

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


# Gradients


@pytest.mark.parametrize("mask", ["batch", "sample"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("name", ["test_vit", "hiera_tiny_224", "pit_ti_224", "tnt_s_legacy_patch16_224"])
def test_gradient_matches_plain_autograd(name: str, mode: str, mask: str) -> None:
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
        for tensor, layout in zip(features_in(output), draw.layouts["stage2"], strict=True):
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
