"""The time of an update under a method, over that under Hard PatchUp: the paper's table of hours as ratios.

A few updates of both, in turn, on images without content: what else the machine does falls on both alike, and no data
is read. Sums and not medians, for a method may do more in some updates than in others.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from accelerate import Accelerator

from ..cli.command import print_errors
from ..cli.recipe_flags import given_keys
from ..cli.train import make_parser
from ..errors import UserError
from ..recipe import Recipe, load_recipe
from ..runs.folder import RunFolder
from ..training.build import build_criterion, build_mixer, build_model, build_optimizer, make_accelerator

REFERENCE = "hard_patchup"
UPDATES, WARMUP = 20, 3


def main(argv: Sequence[str] | None = None) -> None:
    """Measure one recipe and write results.json; the flags are those of the training command."""
    parser = make_parser()
    parser.prog = "timing"
    namespace = parser.parse_args(argv)
    if namespace.recipe is None or namespace.experiment is None:
        parser.error("--recipe and --experiment are needed; scripts/study.py --study training_time gives them")
    try:
        results = _run(namespace)
    except UserError as error:
        raise SystemExit(print_errors(parser.prog, error.problems, 2)) from None
    print(f"an update of {namespace.recipe} takes {results['time_ratio']:.3f} of one of {REFERENCE}")


def _run(namespace: argparse.Namespace) -> dict[str, float]:
    given = given_keys(namespace)
    recipe = load_recipe(namespace.recipe, given)
    of_others = {name: value for name, value in given.items() if not name.startswith("mix")}
    reference = load_recipe(namespace.recipe, {**of_others, "mix": REFERENCE})
    if recipe.torchcompile is not None or recipe.grad_accum_steps > 1:
        raise UserError(["updates are timed eagerly and in one piece: leave out --torchcompile, --grad-accum-steps"])
    folder = RunFolder(Path(namespace.output) / namespace.experiment)
    if folder.state() == "finished":
        return folder.results()
    results = measure(recipe, reference, threads=namespace.threads)
    folder.begin(recipe, folder.name)
    folder.write_results(results)
    return results


def measure(recipe: Recipe, reference: Recipe, *, threads: int | None) -> dict[str, float]:
    """Return the ratio of the seconds of an update of a recipe to those of the reference, and how many were made."""
    accelerator = make_accelerator(recipe, threads=threads)
    steps = [_updater(recipe, accelerator), _updater(reference, accelerator)]
    seconds = [0.0, 0.0]
    for number in range(WARMUP + UPDATES):
        for which, step in enumerate(steps):
            start = time.perf_counter()
            step()
            if number >= WARMUP:
                seconds[which] += time.perf_counter() - start
    return {"time_ratio": seconds[0] / seconds[1], "updates": UPDATES}


def _updater(recipe: Recipe, accelerator: Accelerator) -> Callable[[], None]:
    """Return a function that makes one update of a model of its own."""
    torch.manual_seed(recipe.seed)
    device, layout = accelerator.device, torch.channels_last if recipe.channels_last else torch.contiguous_format
    model = build_model(recipe).to(device).to(memory_format=layout)
    mixer, criterion = build_mixer(recipe, model), build_criterion(recipe)
    optimizer = build_optimizer(recipe, model)
    images = torch.randn(recipe.batch_size, *recipe.input_size, device=device).contiguous(memory_format=layout)
    labels = torch.randint(recipe.num_classes, (recipe.batch_size,), device=device)

    def update() -> None:
        mixed, target = mixer(images, labels)
        with accelerator.autocast():
            output = model(mixed)
        loss = mixer.loss(output.float(), target, criterion)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device

    return update


if __name__ == "__main__":
    main()
