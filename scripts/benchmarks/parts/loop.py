"""What the training loop costs beyond its bare steps, and how long it waits for images."""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from timm_patchup.data.loader import load_data
from timm_patchup.recipe import load_recipe
from timm_patchup.runs.accelerator import make_accelerator
from timm_patchup.runs.folder import RunFolder
from timm_patchup.training.learner import Learner
from timm_patchup.training.loop import Trainer

from ..timing import Part, Row


def rows(flags: argparse.Namespace) -> Iterable[Row]:
    """An epoch of the training loop against its bare steps, on the same batches with the same draws."""
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
            for number in range(flags.rounds + 1):
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


PART = Part("loop", "The training loop, without and with its loader", rows)
