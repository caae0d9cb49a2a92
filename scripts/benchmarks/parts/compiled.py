"""What hard PatchUp in every batch costs a compiled model, in both memory formats."""

import argparse
import copy
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable

import timm
import torch

from timm_patchup import create_mixer

from ..timing import SITES, Part, Row, step_seconds

MODEL, BATCH_SIZE, IMAGE_SIZE = "resnet18", 16, 128


def rows(flags: argparse.Namespace) -> Iterable[Row]:
    """A step of the compiled model with a mixer over one of its twin without, in the same round, by site."""
    for layout in (torch.contiguous_format, torch.channels_last):
        torch._dynamo.reset()
        plain = timm.create_model(MODEL, num_classes=10).to(memory_format=layout).train()
        x = torch.randn(BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE).contiguous(memory_format=layout)
        y = torch.randint(10, (BATCH_SIZE,))
        cases = {}
        for name, model in (("none", plain), ("hard_patchup", copy.deepcopy(plain))):
            mix = create_mixer(name, model, **({"prob": 1.0} if name == "hard_patchup" else {}))
            mix.check_images(x)  # at all its sites, before they are narrowed down to one
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True)
            cases[name] = (mix, torch.compile(model, dynamic=False), optimizer)
        mix = cases["hard_patchup"][0]
        places = {place.name: place for place in mix.sites}
        ratios: dict[str, list[float]] = defaultdict(list)
        order = random.Random(0)
        for number in range(flags.rounds + len(SITES)):
            site = SITES[number % len(SITES)]
            mix.sites = [places[site]]
            seconds = {
                name: sum(step_seconds(*cases[name], x, y) for _ in range(3)) for name in order.sample(list(cases), 2)
            }
            if number >= len(SITES):  # the first step at each site compiles
                ratios[site].append(seconds["hard_patchup"] / seconds["none"])
        over = {site: statistics.median(values) for site, values in ratios.items()}
        row: Row = {
            "model": f"{MODEL} at {IMAGE_SIZE}, batch {BATCH_SIZE}",
            "layout": str(layout).removeprefix("torch."),
        }
        yield row | {site: f"{over[site]:.3f}" for site in SITES} | {"mean": f"{statistics.mean(over.values()):.3f}"}


PART = Part("compiled", "A compiled training step with hard PatchUp in every batch, over one without", rows)
