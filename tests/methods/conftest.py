"""The model of the tests of Puzzle Mix, which asks a classifier where an image is salient."""

import pytest
from torch import nn

from .puzzle_cases import SmallNet


@pytest.fixture
def net() -> nn.Module:
    """A net with BatchNorm and dropout, in train mode."""
    return SmallNet().train()
