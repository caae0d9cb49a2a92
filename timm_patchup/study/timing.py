"""The time of an update with a method relative to Hard PatchUp: the paper's table of hours as ratios.

Updates of both are made in turn on random images, so that other load on the machine affects both and no data is read.
Sums and not medians are compared, since a method may do more in some updates than in others.
"""

import time
from itertools import repeat

import torch
from accelerate import Accelerator

from ..errors import UserError
from ..recipe import Recipe
from ..runs.accelerator import make_accelerator
from ..training.build import precision_of
from ..training.learner import Learner

REFERENCE = "hard_patchup"
UPDATES, WARMUP = 20, 3


def measure(recipe: Recipe, reference: Recipe, *, threads: int | None) -> dict[str, float]:
    """Return the time of an update of a recipe relative to the reference, and the number of timed updates.

    Raises:
        UserError: the recipe compiles the model, which would be timed, too.
    """
    if recipe.torchcompile is not None:
        raise UserError("updates are timed in eager mode: leave out --torchcompile")
    accelerator = make_accelerator(precision=precision_of(recipe), threads=threads)
    updates = [_Update(recipe, accelerator), _Update(reference, accelerator)]
    seconds = [0.0, 0.0]
    for number in range(WARMUP + UPDATES):
        for which, update in enumerate(updates):
            start = time.perf_counter()
            update(number)
            if number >= WARMUP:
                seconds[which] += time.perf_counter() - start
    return {"time_ratio": seconds[0] / seconds[1], "updates": UPDATES}


class _Update:
    """Updates of a learner on one batch of random images."""

    def __init__(self, recipe: Recipe, accelerator: Accelerator) -> None:
        self.learner = Learner(recipe, accelerator, updates_per_epoch=WARMUP + UPDATES)
        self.learner.model.train()
        size = recipe.batch_size // recipe.grad_accum_steps
        images = torch.randn(size, *recipe.input_size, device=accelerator.device)
        labels = torch.randint(recipe.num_classes, (size,), device=accelerator.device)
        self.batches = repeat((images, labels))

    def __call__(self, done: int) -> None:
        self.learner.update(self.batches, done)
        self.learner.mean_loss()  # waits for the device
