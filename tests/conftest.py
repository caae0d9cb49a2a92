"""What the tests share: one thread, a deterministic hypothesis profile, a tiny timm model, a batch, a script."""

import signal
from collections.abc import Callable
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from tests.support.launching import TRAIN_SCRIPT

torch.set_num_threads(1)
# Under nohup, or in the background of a script, these are ignored, and trainings that tests start would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

NUM_CLASSES = 10


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def make_model() -> Callable[..., nn.Module]:
    """Make a small timm model with ten classes, in train mode; ``test_resnet`` by default."""

    def make(name: str = "test_resnet", **model_settings: Any) -> nn.Module:
        return timm.create_model(name, num_classes=NUM_CLASSES, **model_settings).train()

    return make


@pytest.fixture
def model(make_model: Callable[..., nn.Module]) -> nn.Module:
    """A ``test_resnet`` in train mode."""
    return make_model()


@pytest.fixture
def images() -> Tensor:
    """Four images that are not square, (4, 3, 64, 48)."""
    return torch.randn(4, 3, 64, 48)


@pytest.fixture
def labels() -> Tensor:
    """Four labels, all different."""
    return torch.tensor([3, 1, 4, 9])


@pytest.fixture
def train_script(tmp_path: Path) -> Path:
    """A script written like timm's train.py."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN_SCRIPT)
    return path


def within(count: float, trials: int, rate: float, *, bound: float = 1.0, variance: float | None = None) -> bool:
    """Whether a sum of independent values of mean ``rate`` is in its band, with confidence 1 - 1e-9.

    Bernstein's inequality, which holds for any number of trials: values differ from their mean by ``bound`` at most.
    Without a variance they are coins, of variance ``rate * (1 - rate)``.
    """
    spread = rate * (1.0 - rate) if variance is None else variance
    nats = log(2.0 / 1e-9)
    margin = bound * nats / 3.0 + sqrt((bound * nats / 3.0) ** 2 + 2.0 * trials * spread * nats)
    return abs(count - trials * rate) <= margin
