"""What the tests of every method share: the cases by kind, a net cheap enough to compile, mixers and batches.

No method is listed by hand: a new file in ``timm_patchup/methods`` is tested without an edit. ``OPTIONS`` is the table
of what else is mixed with: several methods at once, and settings that change what a draw holds.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.conftest import NUM_CLASSES
from timm_patchup import Draw, Mixer, create_mixer, list_methods
from timm_patchup.core.draw import Change, Erase
from timm_patchup.core.method import method_settings, method_type

HIDDEN = ["first", "second"]
MIXER_ARGUMENTS = ("num_classes", "label_smoothing", "seed", "num_splits", "weights", "schedule")
METHODS = list_methods()
# By name: the methods, one of which acts per batch, and their settings.
OPTIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "one_of_inside": (["hard_patchup", "feature_cutmix", "manifold_mixup"], {"weights": [2, 1, 1]}),
    "one_of_at_the_input": (["cutmix", "mixup"], {}),
    "one_of_all_kinds": (
        ["soft_patchup", "cutmix", "dropblock", "puzzle_mix"],
        {"soft_patchup": {"objective": "l1"}, "dropblock": {"at": "random", "mask": "sample"}},
    ),
    "mixup_per_sample": (["mixup"], {"lam": "sample"}),
    "manifold_mixup_per_sample": (["manifold_mixup"], {"lam": "sample"}),
    "soft_patchup_per_sample": (["soft_patchup"], {"lam": "sample", "mask": "sample"}),
    "hard_patchup_per_sample": (["hard_patchup"], {"mask": "sample"}),
    "hard_patchup_exact_coverage": (["hard_patchup"], {"coverage": "exact"}),
    "one_of_per_sample": (["manifold_mixup", "hard_patchup"], {"lam": "sample"}),
}
# One site per batch, as all others; test_dropblock.py has its own tests of several.
SINGLE: dict[str, dict[str, Any]] = {"dropblock": {"at": "random", "mask": "sample"}}
CASES = [*METHODS, *OPTIONS]


class TinyNet(nn.Module):
    """Two maps and a head, cheap enough to compile and to spawn; ``first`` and ``second`` are its hidden sites."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, NUM_CLASSES)
        self.checkpointing = False

    def body(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.first(x).relu())).relu()

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.body, x, use_reentrant=False) if self.checkpointing else self.body(x)
        return self.head(x.mean((2, 3)))


def tiny_net() -> TinyNet:
    torch.manual_seed(0)
    return TinyNet().train()


def mixer_of(name: str, model: nn.Module, **settings: Any) -> Mixer:
    """Make a mixer that alters every batch at the sites of a TinyNet, as far as the method has such settings."""
    usual: dict[str, Any] = {"prob": 1.0, "sites": ["input", *HIDDEN], "num_classes": NUM_CLASSES, "length": 5}
    names, own = OPTIONS.get(name, ([name], SINGLE.get(name, {})))
    usual |= {"block_size": 3} | own | settings
    known = {*names, *MIXER_ARGUMENTS, *(key for one in names for key in method_settings(one))}
    mix = names if len(names) > 1 else names[0]
    return create_mixer(mix, model, **{key: value for key, value in usual.items() if key in known})


def batch(size: int = 6, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, 12, 10, generator=generator), torch.randint(10, (size,), generator=generator)


def last(mix: Mixer) -> Draw:
    assert mix.draw is not None
    return mix.draw


def bytes_saved(run: Callable[[], object]) -> int:
    """Return how many bytes a forward pass keeps for its backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(kept.values())


def scale_of(draw: Draw) -> Tensor | None:
    """Return what the features that an erasing draw leaves are multiplied by; None if it erases nothing."""
    return draw.change.scale if isinstance(draw.change, Erase) else None


def step(mix: Mixer, x: Tensor, y: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Draw, run the model and return the images, the target and the output."""
    mixed, target = mix(x, y, **options)
    return mixed, target, mix.model(mixed)


def same(first: Draw, second: Draw) -> bool:
    """Whether two draws are equal to the last bit."""

    def equal(a: Any, b: Any) -> bool:
        return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b

    if type(first.change) is not type(second.change):
        return False
    own = [] if first.change is None else [f.name for f in fields(first.change)]  # type: ignore[arg-type]
    return all(
        equal(getattr(first, name), getattr(second, name)) for name in ("site", "partner", "lam", "changed", "kept")
    ) and all(equal(getattr(first.change, name), getattr(second.change, name)) for name in own)


def one_hot(labels: Tensor) -> Tensor:
    return F.one_hot(labels, NUM_CLASSES).float()


def _change_of(name: str) -> Change | None:
    """Return what a method does to a batch; None if it alters none."""
    mix = mixer_of(name, tiny_net())
    mix(*batch())
    return last(mix).change


def _cases(kind: Collection[str], *, require: Callable[[Iterable[bool]], bool]) -> list[str]:
    """Return the cases of which any or all methods are of a kind."""
    return [name for name in CASES if require(one in kind for one in OPTIONS.get(name, ([name], {}))[0])]


_CHANGES = {name: _change_of(name) for name in METHODS}
_WITH_SITES = [name for name in METHODS if "sites" in method_settings(name)]
MIXING = set(_cases([name for name, change in _CHANGES.items() if change is not None and change.mixes], require=any))
ERASING = set(_cases([name for name, change in _CHANGES.items() if isinstance(change, Erase)], require=all))
INSIDE = _cases(_WITH_SITES, require=any)
WITH_SITES = _cases(_WITH_SITES, require=all)
BY_SALIENCY = set(_cases([name for name in METHODS if method_type(name).needs_saliency], require=any))
