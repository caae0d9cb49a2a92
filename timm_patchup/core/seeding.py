"""Where random numbers come from: seeds that follow from whole numbers, and one generator for the draws of a mixer.

Global random state is neither read nor moved.
"""

import hashlib
import os
from typing import Any

import torch

from ..errors import UserError
from .settings import check_value


class Stream:
    """A generator that is seeded anew for each batch from (seed, rank, number of the batch).

    So ranks draw differently, the state is two integers, and a checkpoint written by one rank resumes every rank
    exactly where it was.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.count = 0
        self._generator = torch.Generator()

    def next(self) -> torch.Generator:
        """Return the generator for the next batch."""
        seed = derive_seed(self.seed, _rank(), self.count)
        self.count += 1
        return self._generator.manual_seed(seed)

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        try:
            seed, count = (check_value(key, state[key], int, low=0) for key in ("seed", "count"))
        except (KeyError, TypeError, UserError) as error:
            raise UserError(f"the state of a mixer must hold the integers seed and count, got {state!r}") from error
        self.seed, self.count = seed, count


def derive_seed(*parts: int) -> int:
    """Return a 32-bit seed that follows from whole numbers, such as (seed, rank, step)."""
    digest = hashlib.blake2b("/".join(str(part) for part in parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", 0))
