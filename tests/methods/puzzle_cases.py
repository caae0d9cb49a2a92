"""What the tests of Puzzle Mix share: a small classifier, batches for it, and the mixture of a draw pixel by pixel."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from timm_patchup import Draw, Mixer, create_mixer
from timm_patchup.methods.puzzle_mix import Puzzle


class SmallNet(nn.Module):
    """Two convolutions with BatchNorm and dropout, for images of any size with ``in_chans`` channels."""

    num_classes = NUM_CLASSES

    def __init__(self, in_chans: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_chans, 12, 5, stride=2), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3), nn.ReLU()
        )
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(24, self.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(x).mean((2, 3))))


def batch(count: int = 6, size: tuple[int, int] = (32, 32)) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, *size), torch.arange(count) % NUM_CLASSES


def puzzle_mix(model: nn.Module, **settings: Any) -> Mixer:
    return create_mixer("puzzle_mix", model, **settings)


def drawn(mix: Mixer) -> tuple[Draw, Puzzle]:
    """Return the last draw and what it does to the images."""
    assert mix.draw is not None
    assert isinstance(mix.draw.change, Puzzle)
    return mix.draw, mix.draw.change


def slow_mixture(x: Tensor, partner: Tensor, puzzle: Puzzle) -> Tensor:
    """The mixture pixel by pixel. A piece that is shorter than its place repeats its last row or column."""
    height, width = x.shape[2:]
    rows, columns = puzzle.mask.shape[1:]
    mixed = torch.empty_like(x)

    def moved(image: Tensor, source: Tensor | None, r: int, c: int) -> Tensor:
        if source is None:
            return image[:, r, c]
        pieces = source.shape
        place = r * pieces[0] // height, c * pieces[1] // width
        piece = divmod(int(source[place]), pieces[1])
        pixel = []
        for axis, (here, size) in enumerate(((r, height), (c, width))):
            there, taken = ([p for p in range(size) if p * pieces[axis] // size == n[axis]] for n in (place, piece))
            pixel.append(taken[min(here - there[0], len(taken) - 1)])
        return image[:, pixel[0], pixel[1]]

    for i, j in enumerate(partner.tolist()):
        own_source = None if puzzle.own_source is None else puzzle.own_source[i]
        partner_source = None if puzzle.partner_source is None else puzzle.partner_source[i]
        for r in range(height):
            for c in range(width):
                weight = float(puzzle.mask[i, r * rows // height, c * columns // width])
                own, other = moved(x[i], own_source, r, c), moved(x[j], partner_source, r, c)
                mixed[i, :, r, c] = weight * own + (1 - weight) * other
    return mixed
