"""Two gloo processes, with every row of the table: gradients agree, and each rank draws for itself."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from .every_loop import LOOPS
from .every_method import last, same, step

RANKS = 2


def _train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    records: dict[str, Any] = {}
    for name, loop in LOOPS.items():
        model = loop.model()
        mix = loop.mixer(model)
        mix.set_epoch(1)
        parallel = DistributedDataParallel(model)
        draws, grads = [], []
        for seed in range(4):
            model.zero_grad()
            mixed, target = mix(*loop.batch(2 * seed + rank))
            mix.loss(parallel(mixed), target, loop.criterion).backward()
            draws.append(last(mix))
            grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        records[name] = draws, grads, mix.state_dict()
    torch.save(records, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_agree_on_gradients_and_draw_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_train, args=(folder,), nprocs=RANKS, start_method="spawn")
        ranks = [torch.load(Path(folder) / f"rank{rank}.pt", weights_only=False) for rank in range(RANKS)]
    for name, loop in LOOPS.items():
        draws = [rank[name][0] for rank in ranks]
        for first, second in zip(ranks[0][name][1], ranks[1][name][1], strict=True):
            assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True)), name
        assert name == "none" or not same(draws[0][0], draws[1][0]), name
        assert ranks[0][name][2] == ranks[1][name][2], "one state for all ranks"
        for rank in range(RANKS):  # what a rank draws follows from seed, rank, step and batch alone
            monkeypatch.setenv("RANK", str(rank))
            mix = loop.mixer(loop.model())
            mix.set_epoch(1)
            step(mix, *loop.batch(rank))
            assert same(last(mix), draws[rank][0]), name
