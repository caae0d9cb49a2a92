"""The parts of the torture, by name; each takes the number of trials and a source of random choices."""

import random
from collections.abc import Callable

from ..tally import Tally
from . import aliases, calls, concurrent, damage, disks, escapes, imports, kills, links, manifests, ranks, signals

Part = Callable[[int, random.Random], list[Tally]]
PARTS: dict[str, Part] = {
    module.__name__.rpartition(".")[2]: module.trials
    for module in (signals, kills, ranks, damage, disks, concurrent, calls, links, manifests, aliases, imports, escapes)
}
