"""This checkout against another one: a training step, and the number of graphs when compiled."""

import os
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch

from .timing import SITES, Row

WORKER = """
import sys, time
import timm, torch
import timm_patchup

threads, name, *shape = sys.argv[1:]
torch.set_num_threads(int(threads))
torch.manual_seed(0)
model = timm.create_model(name, num_classes=10).train()
x, y = torch.randn(*map(int, shape)), torch.randint(10, (int(shape[0]),))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True)
for line in sys.stdin:
    task, method, site = line.split()
    chosen = {"prob": 1.0, "sites": [site]} if method != "none" else {}
    mix = timm_patchup.create_mixer(method, model, seed=1, **chosen)
    if task == "graphs":
        torch._dynamo.reset()
        graphs = []
        def count(graph, inputs):
            graphs.append(graph)
            return graph.forward
        run = torch.compile(model, backend=count)
        for _ in range(4):
            mixed, target = mix(x, y)
            mix.loss(run(mixed), target).backward()
        print(len(graphs), flush=True)
        torch._dynamo.reset()
    else:
        mix.check_images(x)
        start = time.perf_counter()
        for _ in range(2):
            mixed, target = mix(x, y)
            mix.loss(model(mixed), target).backward()
            optimizer.step()
            optimizer.zero_grad()
        print(time.perf_counter() - start, flush=True)
    mix.detach()
"""


def edition_rows(other: Path, rounds: int) -> Iterable[Row]:
    """A training step and the number of compiled graphs of this checkout against another one, in turn.

    Each checkout has its own process, which makes steps on request; only one of them works at a time.
    """
    own = Path(__file__).resolve().parents[2]
    cases = [(method, site) for method in ("none", "hard_patchup", "soft_patchup") for site in SITES]
    for name, shape in (("preactresnet18", (64, 3, 32, 32)), ("resnet18", (8, 3, 160, 160))):
        words = [sys.executable, "-c", WORKER, str(torch.get_num_threads()), name, *map(str, shape)]
        workers = {
            folder: subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(folder)},
            )
            for folder in (own, other.resolve())
        }

        def ask(folder: Path, task: str, workers: dict = workers) -> float:
            workers[folder].stdin.write(f"{task}\n")
            workers[folder].stdin.flush()
            return float(workers[folder].stdout.readline())

        ratios: dict[str, list[float]] = defaultdict(list)
        order = random.Random(0)
        for number in range(rounds + 1):
            for method, site in cases:
                seconds = {f: ask(f, f"step {method} {site}") for f in order.sample(list(workers), 2)}
                if number:
                    ratios[method].append(seconds[own] / seconds[other.resolve()])
        graphs = {f: [int(ask(f, f"graphs {method} {site}")) for method, site in cases] for f in workers}
        for worker in workers.values():
            worker.stdin.close()
            worker.wait()
        row: Row = {"model": name} | {method: f"{statistics.median(values):.3f}" for method, values in ratios.items()}
        yield row | {"graphs, both": " = ".join(str(sum(counts)) for counts in graphs.values())}
