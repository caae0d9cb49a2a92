"""Tokens: prefix tokens are mixed as the target is, and tokens in another order along the grid of the image."""

from dataclasses import replace

import pytest
import timm
import torch

from tests.support import oracle
from timm_patchup import Draw, PatchUp, create_mixer
from timm_patchup.core.draw import Erase, Mix
from timm_patchup.core.layout import FeatureMap
from timm_patchup.core.probe import probe
from timm_patchup.core.sites import Site

from .layout_models import LABELS, at_site, make

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


# Tokens in another order


@pytest.mark.parametrize("size", [(64, 64), (64, 96)])
def test_mixed_places_of_hiera_are_blocks_of_the_image(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    small = {"stages": (1, 1, 1, 1), "embed_dim": 24, "img_size": size}
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
