"""What every table of the benchmark shares: its rows, its entry in the command, and interleaved timing."""

import argparse
import ctypes
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from timm_patchup import Mixer

SITES = ("input", "stem", "stage1", "stage2")
Row = dict[str, object]


@dataclass(frozen=True)
class Part:
    """One table of the benchmark.

    Attributes:
        name: what ``--part`` calls it.
        title: the line above the table.
        rows: measures, and returns the rows of the table; takes the flags of the command.
    """

    name: str
    title: str
    rows: Callable[[argparse.Namespace], Iterable[Row]]


def medians(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each case over interleaved rounds, after one round that is not counted.

    The order is drawn again in each round, so that no case always follows the same one in the caches and the allocator.
    """
    times: dict[str, list[float]] = defaultdict(list)
    order = random.Random(0)
    for number in range(rounds + 1):
        for name, case in order.sample(list(cases.items()), len(cases)):
            start = time.perf_counter()
            case()
            if number:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[name]) for name in cases}


@contextmanager
def warm_memory() -> Iterator[None]:
    """Let the process keep the memory it frees; glibc would return large blocks to the system at once."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        yield
        return
    m_trim_threshold, m_mmap_max = -1, -4
    library.mallopt(m_mmap_max, 0)
    library.mallopt(m_trim_threshold, 2**31 - 1)
    try:
        yield
    finally:
        library.mallopt(m_mmap_max, 2**16)
        library.mallopt(m_trim_threshold, 2**17)


def step_seconds(mix: Mixer, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """Return how long one training step takes, drawing and mixing included."""
    start = time.perf_counter()
    mix.run(model, x, y)[0].backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start
