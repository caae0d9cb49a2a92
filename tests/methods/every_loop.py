"""The table of what is trained: the cases of ``every_method.py``, and others with another model or other batches.

``test_every_loop.py`` and ``test_every_method_distributed.py`` train every row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import timm
import torch
from timm.loss import JsdCrossEntropy
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from timm_patchup import Mixer, Schedule, create_mixer
from timm_patchup.core import method as method_module
from timm_patchup.core.loss import Criterion

from .every_method import CASES, HIDDEN, batch, mixer_of, tiny_net

UPDATES = 4  # of two micro-batches each
SPLITS = 3


@dataclass(frozen=True)
class Loop:
    """What is trained, and with what: a mixer for a model, batches by their seed, a criterion."""

    mixer: Callable[[nn.Module], Mixer]
    model: Callable[[], nn.Module] = tiny_net
    batch: Callable[[int], tuple[Tensor, Tensor]] = lambda seed: batch(seed=seed)
    criterion: Criterion | None = None

    def train(self, model: nn.Module, mix: Mixer, updates: range, run: nn.Module | None = None) -> None:
        """Train with accumulated gradients; ``run`` is the model as it was compiled, if it was."""
        run = model if run is None else run
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for update in updates:
            mix.set_epoch(update)
            optimizer.zero_grad()
            for part in range(2):
                x, target = mix(*self.batch(2 * update + part))
                (mix.loss(run(x), target, self.criterion) / 2).backward()
            optimizer.step()


def outside_mixer(model: nn.Module) -> Mixer:
    known = dict(method_module._METHODS)
    try:
        name = "tests.methods.outside_method:SwapColumns"
        return create_mixer(name, model, sites=["input", *HIDDEN], num_classes=NUM_CLASSES)
    finally:  # other tests discover the methods that are registered
        method_module._METHODS.clear()
        method_module._METHODS.update(known)


def split_batch(seed: int) -> tuple[Tensor, Tensor]:
    """Two samples, three times, each time augmented in another way."""
    x, y = batch(2 * SPLITS, seed)
    return x, y[:2].repeat(SPLITS)


def tiny_vit() -> nn.Module:
    """A grid of 4 x 4 tokens behind a class token."""
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 4, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=NUM_CLASSES, **sizes).train()


def image_batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, 16, 16, generator=generator), torch.randint(NUM_CLASSES, (4,), generator=generator)


SCHEDULE = Schedule(warmup_epochs=2, warmup=("gamma",), off_epoch=3)
ON_TOKENS = {"sites": ["input", "stem", "stage2"], "block_size": 2}
OWN = {
    "schedule": Loop(partial(mixer_of, "hard_patchup", schedule=SCHEDULE)),
    "outside": Loop(outside_mixer),
    "jsd_splits": Loop(
        partial(mixer_of, "one_of_inside", num_splits=SPLITS), batch=split_batch, criterion=JsdCrossEntropy(SPLITS)
    ),
    "dropblock_at_all_sites": Loop(partial(mixer_of, "dropblock", at="all")),
    "tokens": Loop(partial(mixer_of, "soft_patchup", **ON_TOKENS), tiny_vit, image_batch),
    "tokens_one_of": Loop(partial(mixer_of, "one_of_all_kinds", **ON_TOKENS), tiny_vit, image_batch),
}
LOOPS = {name: Loop(partial(mixer_of, name)) for name in CASES} | OWN
