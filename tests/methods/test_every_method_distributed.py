"""Two gloo processes, with every method: gradients agree, and each rank draws for itself."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from .every_method import CASES, batch, last, mixer_of, same, step, tiny_net

RANKS = 2


def _train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    records: dict[str, Any] = {}
    for name in CASES:
        model = tiny_net()
        mix = mixer_of(name, model)
        parallel = DistributedDataParallel(model)
        draws, grads = [], []
        for seed in range(4):
            x, y = batch(seed=2 * seed + rank)
            model.zero_grad()
            mixed, target = mix(x, y)
            mix.loss(parallel(mixed), target).backward()
            draws.append(last(mix))
            grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        records[name] = draws, grads, mix.state_dict()
    torch.save(records, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_agree_on_gradients_and_draw_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_train, args=(folder,), nprocs=RANKS, start_method="spawn")
        ranks = [torch.load(Path(folder) / f"rank{rank}.pt", weights_only=False) for rank in range(RANKS)]
    for name in CASES:
        draws = [rank[name][0] for rank in ranks]
        for first, second in zip(ranks[0][name][1], ranks[1][name][1], strict=True):
            assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True)), name
        assert name == "none" or not same(draws[0][0], draws[1][0]), name
        assert ranks[0][name][2] == ranks[1][name][2], "one state for all ranks"
        for rank in range(RANKS):  # what a rank draws follows from seed, rank, step and batch alone
            monkeypatch.setenv("RANK", str(rank))
            mix = mixer_of(name, tiny_net())
            step(mix, *batch(seed=rank))
            assert same(last(mix), draws[rank][0]), name
