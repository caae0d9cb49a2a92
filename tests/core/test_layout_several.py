"""Several tensors from one site, such as branches: one mask, fitted to each, and a state that has no place."""

from math import floor

import pytest
import torch
from torch import Tensor, nn

from timm_patchup import PatchUp
from timm_patchup.core.layout import FeatureMap

from .layout_models import at_site


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
    assert draw.layouts["branches"] == (FeatureMap(4, 8, 12), FeatureMap(6, 2, 3), FeatureMap(5, 0, 0, prefix=2))
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
