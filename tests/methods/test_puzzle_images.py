"""Images and targets of Puzzle Mix: pieces and masks against a slow loop, saliency, colours and grids."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from timm_patchup import Draw
from timm_patchup.core import mixer
from timm_patchup.core.probe import saliency
from timm_patchup.methods.puzzle_images import join_images, move_pieces, to_pixels, unit_range
from timm_patchup.methods.puzzle_mix import Puzzle

from .puzzle_cases import SmallNet, batch, drawn, puzzle_mix, slow_mixture

SIZES = [(16, 16), (21, 26), (20, 14)]


@pytest.mark.parametrize("transport", [True, False])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("block_num", [2, 4, 8, 16])
def test_images_and_targets_are_those_of_the_mask(
    block_num: int, size: tuple[int, int], transport: bool, net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = batch(4, size)
    before, spots = x.clone(), torch.rand(4, *size) ** 8
    monkeypatch.setattr(mixer, "saliency", lambda *_: spots)
    # An even share and nearly free moves, so that there is something to see.
    moves = {"t_eps": 0.02} if transport else {}
    mix = puzzle_mix(net, block_num=block_num, alpha=1e3, transport=transport, **moves)
    mixed, target = mix(x, y)
    draw, puzzle = drawn(mix)
    mask = puzzle.mask
    assert torch.equal(x, before)
    assert draw.site == "input"
    assert mask.shape == (4, min(block_num, size[0]), min(block_num, size[1]))
    assert set(mask.unique().tolist()) <= {0.0, 0.5, 1.0}
    torch.testing.assert_close(mixed, slow_mixture(x, draw.partner, puzzle), rtol=1e-5, atol=1e-6)
    if block_num == 16:
        assert len(mask.unique()) == 3
        for source in (puzzle.own_source, puzzle.partner_source):
            assert (source is not None) == transport
            if source is not None:
                assert bool((source != torch.arange(source[0].numel()).view(source.shape[1:])).any())

    # The own share of the target is the mean weight of the own pixels.
    weights = torch.tensor([
        [[mask[i, r * mask.shape[1] // size[0], c * mask.shape[2] // size[1]] for c in range(size[1])]
         for r in range(size[0])]
        for i in range(4)
    ])  # fmt: skip
    share = weights.mean((1, 2))
    torch.testing.assert_close(draw.kept, share)
    assert draw.lam == 0.0
    assert draw.changed is not None
    assert torch.equal(draw.changed, (weights < 1.0)[:, None])
    own = F.one_hot(y, NUM_CLASSES).float()
    torch.testing.assert_close(target, share[:, None] * own + (1 - share[:, None]) * own[draw.partner])
    torch.testing.assert_close(target.sum(1), torch.ones(4))


@pytest.mark.parametrize("size", SIZES)
def test_any_pieces_are_joined_as_the_draw_states(size: tuple[int, int], net: nn.Module) -> None:
    x, y = batch(3, size)
    mask = torch.randint(3, (3, 4, 3)) / 2
    sources = {name: torch.randint(48, (3, 8, 6)) for name in ("own_source", "partner_source")}
    partner = torch.tensor([2, 0, 1])
    changed = torch.ones(3, 1, *size).bool()
    puzzle = Puzzle(prior=0.5, mask=mask, changed=changed, kept=torch.ones(3), **sources)
    mixed, _ = puzzle_mix(net)(x, y, draw=Draw("input", partner, puzzle))
    torch.testing.assert_close(mixed, slow_mixture(x, partner, puzzle), rtol=1e-5, atol=1e-6)
    small = x[:, :1].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: join_images(x, partner, mask, **sources), (small,), fast_mode=True)


def test_masks_follow_the_saliency(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two images, one salient on the left, the other on the right, both halves are seen."""
    x, y = batch(2)
    halves = torch.full((2, 32, 32), 1e-3)
    halves[0, :, :16] = halves[1, :, 16:] = 1.0
    monkeypatch.setattr(mixer, "saliency", lambda *_: halves)
    mix = puzzle_mix(net, block_num=4, alpha=1e6)
    while not torch.equal(mix.draw.partner if mix.draw else y, torch.tensor([1, 0])):
        mixed, target = mix(x, y)
    assert drawn(mix)[1].prior == pytest.approx(0.5, abs=0.01)
    for image, left, right in ((mixed[0], 0, 1), (mixed[1], 0, 1)):
        assert torch.equal(image[:, :, :16], x[left, :, :, :16])
        assert torch.equal(image[:, :, 16:], x[right, :, :, 16:])
    assert target[:, :2].tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_a_salient_block_moves_to_where_it_is_seen(net: nn.Module) -> None:
    x, _ = batch(2, (16, 16))
    source = torch.arange(16).view(1, 4, 4).repeat(2, 1, 1)
    source[0, 1, 2] = 4  # the piece in row 1, column 0
    moved = move_pieces(x, source)
    assert torch.equal(moved[0, :, 4:8, 8:12], x[0, :, 4:8, 0:4])
    assert torch.equal(moved[1], x[1])
    assert int((moved != x).sum()) == 3 * 16


def test_saliency_is_the_gradient_of_a_linear_classifier() -> None:
    class Linear(nn.Module):
        num_classes = NUM_CLASSES

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3 * 5 * 4, NUM_CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.flatten(1))

    model = Linear().train()
    x, y = batch(3, (5, 4))
    own = F.one_hot(y, NUM_CLASSES).float()
    with torch.no_grad():
        grad = ((model(x).softmax(1) - own) @ model.head.weight).view(3, 3, 5, 4)
    expected = (grad**2).mean(1).sqrt()
    torch.testing.assert_close(saliency(model, x, own), expected)
    with torch.no_grad():
        torch.testing.assert_close(saliency(model, x, own), expected)


def test_colours_are_stretched_channel_by_channel() -> None:
    x = torch.rand(5, 2, 8, 8) * torch.tensor([3.0, 0.5])[:, None, None] - 1.0
    x[:, 1, 0, 0] = -1.0
    unit = unit_range(x)
    for channel in (0, 1):
        assert unit[:, channel].min() == 0.0
        assert float(unit[:, channel].max()) == pytest.approx(1.0)
    assert torch.equal(unit_range(torch.full((2, 1, 4, 4), 7.0)), torch.zeros(2, 1, 4, 4))


def test_grid_is_never_finer_than_the_pixels() -> None:
    assert to_pixels(torch.arange(6).view(1, 2, 3), 2, 3).tolist() == [[[0, 1, 2], [3, 4, 5]]]
    model = SmallNet().train()
    mix = puzzle_mix(model, block_num=16)
    x, y = batch(4, (12, 9))
    mixed, _ = mix(x, y)
    draw, puzzle = drawn(mix)
    assert puzzle.mask.shape == (4, 12, 9)
    torch.testing.assert_close(mixed, slow_mixture(x, draw.partner, puzzle), rtol=1e-5, atol=1e-6)
