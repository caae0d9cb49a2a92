"""Two gloo processes: ranks draw differently, gradients agree, and one rank's checkpoint resumes every rank."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timm_patchup import MixTask, PatchUp

RANKS = 2
STEPS = 6


def _train(rank: int, folder: str, checkpointing: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=10)
    if checkpointing:
        model.set_grad_checkpointing(True)
    task = MixTask(model, nn.CrossEntropyLoss(), mixer=PatchUp(model, prob=1.0, seed=7), verbose=False)
    task.prepare_distributed(device_ids=[torch.device("cpu")])  # what timm's train.py passes
    assert isinstance(task.get_trainable_module(), DistributedDataParallel)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    record: dict[str, Any] = {"draws": [], "grads": [], "state": None}
    for step in range(STEPS):
        if step == STEPS // 2:
            record["state"] = task.get_task_state()
        x = torch.randn(4, 3, 64, 64, generator=generator)
        y = torch.randint(10, (4,), generator=generator)
        optimizer.zero_grad()
        with task.no_sync():
            task(x, y)["loss"].backward()
        local = model.conv1[0].weight.grad.clone()
        task(x, y)["loss"].backward()
        record["draws"].append((task.mixer.draw.site, task.mixer.draw.partner.tolist(), float(task.mixer.draw.kept)))
        record["grads"].append((local, model.conv1[0].weight.grad.clone()))
        optimizer.step()
    record["weights"] = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.save(record, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_two_processes(checkpointing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_train, args=(folder, checkpointing), nprocs=RANKS, start_method="spawn")
        first, second = (torch.load(Path(folder) / f"rank{rank}.pt") for rank in range(RANKS))
    assert first["draws"] != second["draws"]
    for (local_a, synced_a), (local_b, synced_b) in zip(first["grads"], second["grads"]):
        assert not torch.equal(local_a, local_b)
        assert torch.equal(synced_a, synced_b)
    for name, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][name]), name

    # The state that rank 0 wrote half-way lets both ranks continue with their own draws.
    assert first["state"] == second["state"]
    for rank, record in enumerate((first, second)):
        monkeypatch.setenv("RANK", str(rank))
        model = timm.create_model("test_resnet", num_classes=10)
        mix = PatchUp(model, prob=1.0, seed=99)
        mix.load_state_dict(first["state"]["mixer"])
        draws = []
        for _ in range(2 * (STEPS - STEPS // 2)):
            x, _ = mix(torch.randn(4, 3, 64, 64), torch.zeros(4, dtype=torch.long))
            model(x)
            draws.append((mix.draw.site, mix.draw.partner.tolist(), float(mix.draw.kept)))
        assert draws[1::2] == record["draws"][STEPS // 2 :]
