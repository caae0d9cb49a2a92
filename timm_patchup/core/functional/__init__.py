"""The maths of PatchUp as pure functions: they take what was drawn, draw nothing and never change their inputs.

In the paper's order: the binary mask (``masks``), the operation (``features``), the targets and the objective
(``targets``). Only torch is imported here.

Two conventions hold everywhere. ``changed`` is the paper's ``1 - M``: True where features are altered. ``lam`` is the
weight of a sample's own features inside the altered region; 0 or ``None`` is a swap.
"""

from .features import erase_features, like_memory, mix_features
from .masks import exact_seed_rate, expected_coverage, fit_block, grow_blocks, kept_fraction, rectangle_mask, seed_rate
from .targets import MethodObjective, Objective, mix_targets, patchup_loss, smooth_target, soft_target

__all__ = [
    "MethodObjective",
    "Objective",
    "erase_features",
    "exact_seed_rate",
    "expected_coverage",
    "fit_block",
    "grow_blocks",
    "kept_fraction",
    "like_memory",
    "mix_features",
    "mix_targets",
    "patchup_loss",
    "rectangle_mask",
    "seed_rate",
    "smooth_target",
    "soft_target",
]
