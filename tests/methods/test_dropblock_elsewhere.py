"""DropBlock against torchvision's at equal seeds: the rate, the blocks and the scale, through a model's hook.

torchvision draws seeds only where a whole block fits. The paper's authors draw them at every place, and so do we, which
clips blocks at the border and drops a little less of a map.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import drop_block2d

from timm_patchup import Draw, create_mixer
from timm_patchup.core.draw import Erase
from timm_patchup.core.functional import grow_blocks, kept_fraction, seed_rate

SHAPES = [(4, 6, 32, 32), (4, 6, 16, 16), (3, 5, 9, 14)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block_size", [3, 5, 7])
@pytest.mark.parametrize("drop_prob", [0.1, 0.3])
def test_features_are_torchvisions_at_equal_seeds(
    shape: tuple[int, int, int, int], block_size: int, drop_prob: float
) -> None:
    batch, channels, height, width = shape
    x = torch.randn(shape)
    torch.manual_seed(3)
    theirs = drop_block2d(x, drop_prob, block_size)
    torch.manual_seed(3)
    fitting = (batch, channels, height - block_size + 1, width - block_size + 1)
    drawn = torch.empty(fitting).bernoulli_(seed_rate(drop_prob, block_size, height, width))
    changed = grow_blocks(F.pad(drawn, [block_size // 2] * 4).bool(), block_size)
    net = nn.Sequential(nn.Identity(), nn.Identity()).train()
    mix = create_mixer("dropblock", net, sites=["0"], num_classes=2, drop_prob=drop_prob, block_size=block_size)
    draw = Draw("0", torch.arange(batch), Erase(changed, 1.0 / kept_fraction(changed).mean()))
    ours = net(mix(x, torch.zeros(batch, dtype=torch.long), draw=draw)[0])
    assert 0.02 < float((ours == 0).float().mean()) < 0.9
    assert torch.equal(ours == 0, theirs == 0)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def loop_drop_block(x: Tensor, seeds: Tensor, block_size: int) -> Tensor:
    """DropBlock of a batch written out: a seed zeroes the block around it; the rest is scaled by what is left."""
    kept = torch.ones_like(x)
    before, after = block_size // 2, (block_size - 1) // 2
    for sample, channel, row, column in seeds.nonzero().tolist():
        rows = slice(max(0, row - before), row + after + 1)
        kept[sample, channel, rows, max(0, column - before) : column + after + 1] = 0.0
    return x * kept * (kept.numel() / kept.sum())


@pytest.mark.parametrize("block_size", [2, 5, 7])
def test_blocks_are_those_of_a_loop_to_the_border(block_size: int) -> None:
    seeds = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)) < 0.02
    seeds[0, 0, 0, 0] = seeds[0, 1, -1, -1] = True
    expected = loop_drop_block(torch.ones(2, 3, 16, 16), seeds, block_size) == 0
    assert torch.equal(grow_blocks(seeds, block_size), expected)


def test_seeds_are_drawn_at_every_place() -> None:
    """Blocks that the border clips: with torchvision's seeds no mask that drops anything drops less than a block."""
    net = nn.Sequential(nn.Identity(), nn.Identity()).train()
    mix = create_mixer("dropblock", net, sites=["0"], num_classes=2, drop_prob=0.1)
    smallest = []
    for _ in range(20):
        x = torch.rand(20, 6, 16, 16) + 1.0
        dropped = (net(mix(x, torch.zeros(20, dtype=torch.long))[0]) == 0).sum((2, 3))
        smallest.append(int(dropped[dropped > 0].min()))
    assert min(smallest) == 4 * 4, "what a seed in a corner leaves of a block of 7"
