"""Seed the global generators, which timm's transforms and dropout use; mixers have their own (``core/sampling.py``)."""

import random

import numpy as np
import torch


def seed_everything(seed: int, device: torch.device | None = None) -> None:
    """Seed the global generators of Python, NumPy and torch, the latter on the CPU and on a device."""
    random.seed(seed)
    np.random.seed(seed)
    if device is None or device.type == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 200 times as long if CUDA is not in use
    else:
        torch.manual_seed(seed)
