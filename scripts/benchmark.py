"""What mixing costs: the operation, a training step, memory and import, as ratios taken in one interleaved run.

    python scripts/benchmark.py [--part op step methods loop memory import] [--rounds 15] [--json FILE]
    python scripts/benchmark.py --against path/to/another/checkout     # this edition's step over the other's

Every case of a table runs once per round, in random order, so that whatever else the machine does falls on all alike;
the figures are medians over the rounds, divided by the reference case of the table. Absolute times are not kept.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timm_patchup import Mixer, create_mixer, list_methods
from timm_patchup.core.functional import grow_blocks, kept_fraction, mix_features, seed_rate
from timm_patchup.core.method import make_method, method_settings
from timm_patchup.core.sampling import bernoulli, beta

GAMMA, BLOCK, ALPHA = 0.5, 7, 2.0
SITES = ("input", "stem", "stage1", "stage2")
SHAPES = ((100, 64, 32, 32), (32, 256, 56, 56))
Row = dict[str, object]


def medians(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each case over interleaved rounds, after one round that is not counted.

    The order is drawn anew in each round: what a case leaves in the caches and the allocator falls on all others alike.
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


def naive(x: Tensor, mode: str) -> Tensor:
    """The paper's algorithm 1 as written: a mask expanded over the batch, pooled and multiplied."""
    rate = seed_rate(GAMMA, BLOCK, x.shape[2], x.shape[3])
    seeds = torch.bernoulli(torch.full_like(x[0], rate)).expand(x.shape)
    holes = F.max_pool2d(seeds, (BLOCK, BLOCK), (1, 1), (BLOCK // 2, BLOCK // 2))
    mask = 1 - holes
    unchanged = mask * x
    partner = torch.randperm(len(x))
    patches = holes * x
    if mode == "hard":
        patches = patches[partner]
    else:
        lam = torch.distributions.Beta(ALPHA, ALPHA).sample()
        patches = patches * lam + patches[partner] * (1 - lam)
    return unchanged + patches


def manifold_mixup(x: Tensor) -> Tensor:
    lam = torch.distributions.Beta(ALPHA, ALPHA).sample()
    return lam * x + (1 - lam) * x[torch.randperm(len(x))]


def patchup(x: Tensor, mode: str, generator: torch.Generator, mix: Callable[..., Tensor]) -> Tensor:
    """What the mixer does at a hidden site: draw the mask and lam, then mix."""
    rate = seed_rate(GAMMA, BLOCK, x.shape[2], x.shape[3])
    changed = grow_blocks(bernoulli((1, *x.shape[1:]), rate, generator, x.device), BLOCK)
    kept_fraction(changed)
    lam = torch.full((), beta(ALPHA, generator)) if mode == "soft" else None
    partner = torch.randperm(len(x), generator=generator)
    return mix(x, changed, partner, lam=lam, inverse=partner.argsort())


def op_rows(rounds: int) -> Iterable[Row]:
    """(a) The operation with its mask drawing, forward and backward, in units of one copy."""
    generator = torch.Generator().manual_seed(0)
    compiled = torch.compile(mix_features, dynamic=False)
    for shape in SHAPES:
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
            grad = torch.randn(shape).contiguous(memory_format=layout)

            def both_ways(
                operation: Callable[[Tensor], Tensor], x: Tensor = x, grad: Tensor = grad
            ) -> Callable[[], None]:
                def run() -> None:
                    x.grad = None
                    operation(x).backward(grad)

                return run

            cases = {
                "copy": both_ways(lambda x: x * 1.0),
                "ManifoldMixup": both_ways(manifold_mixup),
            }
            for mode in ("hard", "soft"):
                cases[f"{mode} naive"] = both_ways(lambda x, mode=mode: naive(x, mode))
                cases[f"{mode} PatchUp"] = both_ways(lambda x, mode=mode: patchup(x, mode, generator, mix_features))
                cases[f"{mode} compiled"] = both_ways(lambda x, mode=mode: patchup(x, mode, generator, compiled))
            seconds = medians(cases, rounds)
            row: Row = {"shape": "x".join(map(str, shape)), "layout": str(layout).removeprefix("torch.")}
            yield row | {name: round(value / seconds["copy"], 2) for name, value in seconds.items()}


def step_seconds(mix: Mixer, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """Return how long one training step takes, drawing and mixing included."""
    start = time.perf_counter()
    mix.run(model, x, y)[0].backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start


def step_rows(rounds: int) -> Iterable[Row]:
    """(b) A whole training step with each method against none: cost at each site, and its average over draws."""
    settings = {
        "resnet50 at 224, batch 16": (timm.create_model("resnet50", num_classes=1000), (16, 3, 224, 224), 1000),
        "preactresnet18 at 32, batch 100": (timm.create_model("preactresnet18"), (100, 3, 32, 32), 10),
    }
    for name, (model, shape, classes) in settings.items():
        x, y = torch.randn(shape), torch.randint(classes, shape[:1])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True)
        ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
        order = random.Random(0)
        # All sites are seen equally often, and a method's step is divided by the plain step of the same round: a slow
        # spell of the machine falls on both.
        for number in range(rounds + 1):
            seconds: dict[str, float] = {}
            site = SITES[number % len(SITES)]
            for method in order.sample(("none", "hard_patchup", "soft_patchup"), 3):
                chosen = {} if method == "none" else {"prob": 1.0}
                mix = create_mixer(method, model, num_classes=classes, seed=number, **chosen)
                if method != "none":
                    mix.check_images(x)  # the probe of a new input size is paid once per run, not per step
                    mix.sites = [place for place in mix.sites if place.name == site]
                seconds[method] = step_seconds(mix, model, optimizer, x, y)
                mix.detach()
            for method in ("hard_patchup", "soft_patchup"):
                if number:
                    ratios[method, site].append(seconds[method] / seconds["none"])
        for method in ("hard_patchup", "soft_patchup"):
            over = {site: 100 * (statistics.median(ratios[method, site]) - 1) for site in SITES}
            prob = make_method(method).prob
            mean = {"over draws": prob * statistics.mean(over.values())}
            yield {"model": name, "method": method} | {
                place: f"{value:+.1f}%" for place, value in (over | mean).items()
            }


def method_rows(rounds: int, model_name: str, batch_size: int) -> Iterable[Row]:
    """(d) A training step at CIFAR size under every method, in units of the plain step of the same round.

    A method that has several sites takes them in turn. The row of ``none`` is one plain step against another: noise.
    """
    model = timm.create_model(model_name, num_classes=10).train()
    x, y = torch.randn(batch_size, 3, 32, 32), torch.randint(10, (batch_size,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True)
    ratios: dict[str, dict[str, list[float]]] = {method: defaultdict(list) for method in list_methods()}
    order = random.Random(0)
    cases = {"plain": "none"} | {method: method for method in list_methods()}
    for number in range(rounds + 1):
        seconds, places = {}, {}
        for case, method in order.sample(list(cases.items()), len(cases)):
            chosen = {"prob": 1.0} if "prob" in method_settings(method) else {}
            mix = create_mixer(method, model, seed=number, **chosen)
            mix.check_images(x)
            mix.sites = [mix.sites[number % len(mix.sites)]]
            seconds[case], places[case] = step_seconds(mix, model, optimizer, x, y), mix.sites[0].name
            mix.detach()
        for method in list_methods():
            if number:
                ratios[method][places[method]].append(seconds[method] / seconds["plain"])
    for method, by_site in ratios.items():
        altered = statistics.mean(statistics.median(values) for values in by_site.values())
        prob = make_method(method).prob
        average = 1.0 + prob * (altered - 1.0)
        yield {"method": method, "altered batch": f"{altered:.2f}", "prob": prob, "on average": f"{average:.2f}"}


def loop_rows(rounds: int) -> Iterable[Row]:
    """(e) An epoch of the training loop against its bare steps, on the same batches with the same draws."""
    from timm_patchup.data.loader import load_data
    from timm_patchup.recipe import load_recipe
    from timm_patchup.runs.accelerator import make_accelerator
    from timm_patchup.runs.folder import RunFolder
    from timm_patchup.training.learner import Learner
    from timm_patchup.training.loop import Trainer

    for name, overrides in (
        ("fashion_mini_hard_patchup", {}),
        ("fashion_mini_hard_patchup", {"model": "preactresnet18", "limit": 100, "batch_size": 20}),
    ):
        recipe = load_recipe(name, overrides)
        accelerator = make_accelerator(threads=torch.get_num_threads())
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(recipe, load_data(recipe), RunFolder(Path(folder)), accelerator)
            trainer.progress.enabled = trainer.progress.terminal = False
            trainer.batches.begin(0)
            learner = trainer.learner
            batches, draws = list(trainer.loader), learner.mixer.state_dict()

            def bare(learner: Learner = learner, batches: list = batches) -> None:
                for images, labels in batches:
                    mixed, target = learner.mixer(images, labels)
                    loss = learner.mixer.loss(learner.unwrapped_model(mixed), target, learner.criterion)
                    loss.backward()
                    learner.optimizer.step()
                    learner.optimizer.zero_grad()

            def loop(trainer: Trainer = trainer) -> None:
                trainer.position.update = 0
                trainer._train_epoch()

            ratios, waits = [], []
            order = random.Random(0)
            for number in range(rounds + 1):
                seconds = {}
                for case in order.sample((bare, loop), 2):
                    learner.mixer.load_state_dict(draws)
                    start = time.perf_counter()
                    case()
                    seconds[case] = time.perf_counter() - start
                if number:
                    waits.append(trainer.progress.waited_fraction)
                    ratios.append(seconds[loop] / seconds[bare] - waits[-1])
            yield {
                "model": f"{recipe.model}, batch {recipe.batch_size} of 32 x 32",
                "loop over bare steps": f"{100 * (statistics.median(ratios) - 1):+.1f}%",
                "waiting for the loader": f"{100 * statistics.median(waits):.1f}%",
            }


def memory_rows() -> Iterable[Row]:
    """(c) Bytes that the operation keeps for backward, as a share of the bytes of its input."""
    generator = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        x = torch.randn(shape, requires_grad=True)
        cases: dict[str, Callable[[], Tensor]] = {"ManifoldMixup": lambda x=x: manifold_mixup(x)}
        for mode in ("hard", "soft"):
            cases[f"{mode} naive"] = lambda x=x, mode=mode: naive(x, mode)
            cases[f"{mode} PatchUp"] = lambda x=x, mode=mode: patchup(x, mode, generator, mix_features)
        row: Row = {"shape": "x".join(map(str, shape))}
        for name, case in cases.items():
            saved: dict[int, int] = {}

            def pack(tensor: Tensor, saved: dict[int, int] = saved) -> Tensor:
                storage = tensor.untyped_storage()
                saved[storage.data_ptr()] = storage.nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                case()
            row[name] = f"{100 * sum(saved.values()) / x.untyped_storage().nbytes():.1f}%"
        yield row


def import_rows(rounds: int) -> Iterable[Row]:
    """Importing the package, in units of importing timm."""

    def importing(module: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    seconds = medians({name: importing(name) for name in ("timm", "timm_patchup")}, rounds)
    yield {"timm": 1.0, "timm_patchup": round(seconds["timm_patchup"] / seconds["timm"], 2)}


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

    Each edition has a process of its own, which makes steps when it is asked to; only one of them works at a time.
    """
    own = Path(__file__).resolve().parents[1]
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


PARTS: dict[str, tuple[str, Callable[[argparse.Namespace], Iterable[Row]]]] = {
    "op": ("The operation, forward and backward, in units of one copy", lambda given: op_rows(given.rounds)),
    "step": ("A training step: time over a step without mixing", lambda given: step_rows(given.rounds)),
    "methods": (
        "A training step at CIFAR size under every method, in units of one without mixing",
        lambda given: method_rows(given.rounds, given.model, given.batch_size),
    ),
    "loop": ("The training loop, without and with its loader", lambda given: loop_rows(given.rounds)),
    "memory": ("Kept for backward, as a share of the input", lambda given: memory_rows()),
    "import": ("Import", lambda given: import_rows(given.rounds)),
}


def show(title: str, rows: list[Row]) -> None:
    columns = list(rows[0])
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(str(row[column]) for column in columns)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="tables to make")
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds per table")
    parser.add_argument("--model", default="preactresnet18", help="model of the part methods, for images of 32 x 32")
    parser.add_argument("--batch-size", type=int, default=100, help="batch of the part methods")
    parser.add_argument("--threads", type=int, help="threads of torch; default: torch's own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--against", type=Path, metavar="DIR", help="only compare with another checkout")
    arguments = parser.parse_args()
    if arguments.rounds < 4:
        parser.error(f"--rounds must be at least 4, one for each site, got {arguments.rounds}")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.against:
        show("A training step, this edition over the other", list(edition_rows(arguments.against, arguments.rounds)))
        return
    results = {}
    for part in arguments.part:
        title, rows_of = PARTS[part]
        results[part] = list(rows_of(arguments))
        show(title, results[part])
    if arguments.json:
        about = {"torch": torch.__version__, "timm": timm.__version__, "threads": torch.get_num_threads()}
        arguments.json.write_text(json.dumps({**about, "rounds": arguments.rounds, **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
