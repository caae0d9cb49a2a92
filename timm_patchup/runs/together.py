"""What fails in one process fails in all: nobody is left waiting for a process that has given up.

Work that one process does for all, or that may fail in one only, goes through here before the next collective call.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from accelerate import Accelerator

from ..errors import OtherProcessFailed

Result = TypeVar("Result")


@contextmanager
def together(accelerator: Accelerator) -> Iterator[None]:
    """Wait for all processes at the end of the block, which makes no collective calls, and fail if one has failed.

    Raises:
        OtherProcessFailed: the block failed in another process; there, its own error is raised.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    flag = torch.tensor([failure is not None], dtype=torch.int32, device=accelerator.device)
    anyone = bool(accelerator.gather(flag).any())
    if failure is not None:
        raise failure
    if anyone:
        raise OtherProcessFailed


def main_first(accelerator: Accelerator, work: Callable[[], Result]) -> Result:
    """Do the work in the main process and then in the others, for one download and one cache; return its result."""
    results: list[Result] = []
    for turn in (True, False):
        with together(accelerator):
            if accelerator.is_main_process is turn:
                results.append(work())
    return results[0]


def is_lost_process(error: BaseException) -> bool:
    """Return whether an error means that another process of a collective call is gone."""
    if not torch.distributed.is_available():
        return False
    # Gloo's errors have no type of their own.
    return isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
