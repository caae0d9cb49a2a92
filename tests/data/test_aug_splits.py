"""Augmentation splits: a batch holds all samples once per split, the first time without policies and jitter."""

import pytest
import torch
from torch import Tensor

from timm_patchup.data.loader import load_data, training_loader
from timm_patchup.recipe import Recipe

from .small_recipe import small

SPLITS = 3
KINDS = [{"crop_padding": 2}, {"crop_padding": None, "workers": 1}]
AUGMENTS = [{"aa": "augmix-m3-w3"}, {"color_jitter": 0.4}]


def first_batch(recipe: Recipe, epoch: int = 1) -> tuple[Tensor, Tensor]:
    loader, batches = training_loader(load_data(recipe).train, recipe, rank=0, world_size=1)
    batches.begin(epoch=epoch)
    return next(iter(loader))


@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_splits_share_crops_and_the_first_is_clean(kind: dict, augment: dict) -> None:
    clean, labels = first_batch(small(limit=200, **kind))
    images, all_labels = first_batch(small(limit=200, **kind, **augment, aug_splits=SPLITS))
    assert images.shape == (SPLITS * 20, *clean.shape[1:])
    assert torch.equal(all_labels, labels.repeat(SPLITS))
    first, *others = images.chunk(SPLITS)
    torch.testing.assert_close(first, clean)
    for other in others:
        unlike = (other != clean).flatten(1).any(1)
        assert unlike.float().mean() > 0.5, "augmented"
        assert (other - clean).abs().mean() < 0.7 * (other - clean.roll(1, 0)).abs().mean(), "and the same sample"
    assert not torch.equal(others[0], others[1])
