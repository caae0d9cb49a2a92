"""What the operation keeps in memory for backward."""

import argparse
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from timm_patchup.core.functional import mix_features

from ..operations import SHAPES, manifold_mixup, naive, patchup
from ..timing import Part, Row


def rows(flags: argparse.Namespace) -> Iterable[Row]:
    """Bytes that the operation keeps for backward, as a share of the bytes of its input."""
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


PART = Part("memory", "Kept for backward, as a share of the input", rows)
