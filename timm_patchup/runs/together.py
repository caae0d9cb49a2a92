"""Make an error in one process stop all of them, so that no process waits for one that has failed.

Work that one process does for all, or that may fail in one only, goes through here before the next collective call.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from accelerate import Accelerator

from ..errors import OtherProcessFailed, UserError

Result = TypeVar("Result")


@contextmanager
def together(accelerator: Accelerator) -> Iterator[None]:
    """Wait for all processes at the end of the block, which makes no collective calls, and fail if one has failed.

    Raises:
        OtherProcessFailed: the block failed in another process; there, its own error is raised, and reported by the
            first of those that have one.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    flag = torch.tensor([failure is not None], dtype=torch.int32, device=accelerator.device)
    failed = accelerator.gather(flag).nonzero().flatten().tolist()
    if failure is not None:
        if isinstance(failure, UserError):
            failure.one_process = failed[0] == accelerator.process_index
        raise failure
    if failed:
        raise OtherProcessFailed


@contextmanager
def naming_lost_processes(accelerator: Accelerator) -> Iterator[None]:
    """Turn the error of a collective call whose other processes are gone into a line.

    Raises:
        OtherProcessFailed: another process is gone.
    """
    try:
        yield
    except RuntimeError as error:
        if accelerator.num_processes > 1 and is_lost_process(error):
            raise OtherProcessFailed from error
        raise


@contextmanager
def failing_alone(accelerator: Accelerator) -> Iterator[None]:
    """Let the process that fails in the block report why: the others do not know. Wrong calls fail in all alike."""
    try:
        yield
    except UserError as error:
        if error.retry and error.one_process is None:
            error.one_process = accelerator.num_processes > 1
        raise


def all_equal(accelerator: Accelerator, number: int) -> bool:
    """Return whether all processes call this with the same number."""
    numbers = accelerator.gather(torch.tensor([number], device=accelerator.device))
    return bool((numbers == number).all())


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
    # Gloo's errors have no type by which to know them.
    return isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
