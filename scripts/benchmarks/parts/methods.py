"""What a training step costs with each method, against one without mixing."""

import argparse
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable

import timm
import torch

from timm_patchup import create_mixer, list_methods
from timm_patchup.core.method import make_method, method_settings

from ..timing import Part, Row, step_seconds


def rows(flags: argparse.Namespace) -> Iterable[Row]:
    """A training step at CIFAR size with every method, in units of the plain step of the same round.

    A method that has several sites takes them in turn. The row of ``none`` is one plain step against another: noise.
    """
    model = timm.create_model(flags.model, num_classes=10).train()
    x, y = torch.randn(flags.batch_size, 3, 32, 32), torch.randint(10, (flags.batch_size,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True)
    ratios: dict[str, dict[str, list[float]]] = {method: defaultdict(list) for method in list_methods()}
    order = random.Random(0)
    cases = {"plain": "none"} | {method: method for method in list_methods()}
    for number in range(flags.rounds + 1):
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


PART = Part("methods", "A training step at CIFAR size with every method, in units of one without mixing", rows)
