"""What a training step costs at each site, and on average over the draws, against one without mixing."""

import argparse
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable

import timm
import torch

from timm_patchup import create_mixer
from timm_patchup.core.method import make_method

from ..timing import SITES, Part, Row, step_seconds


def rows(flags: argparse.Namespace) -> Iterable[Row]:
    """A whole training step with each method against none: cost at each site, and its average over draws."""
    settings = {
        "resnet50 at 224, batch 16": (timm.create_model("resnet50", num_classes=1000), (16, 3, 224, 224), 1000),
        "preactresnet18 at 32, batch 100": (timm.create_model("preactresnet18"), (100, 3, 32, 32), 10),
    }
    for name, (model, shape, classes) in settings.items():
        x, y = torch.randn(shape), torch.randint(classes, shape[:1])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True)
        ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
        order = random.Random(0)
        # All sites are used equally often, and a method's step is divided by the plain step of the same round: a slow
        # phase of the machine affects both.
        for number in range(flags.rounds + 1):
            seconds: dict[str, float] = {}
            site = SITES[number % len(SITES)]
            for method in order.sample(("none", "hard_patchup", "soft_patchup"), 3):
                chosen = {} if method == "none" else {"prob": 1.0}
                mix = create_mixer(method, model, num_classes=classes, seed=number, **chosen)
                if method != "none":
                    mix.check_images(x)  # a new input size is probed once per run, not once per step
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


PART = Part("step", "A training step: time over a step without mixing", rows)
