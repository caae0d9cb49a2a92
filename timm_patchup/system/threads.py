"""The default number of CPU threads per process."""

import os


def share_of_cores(processes: int) -> int:
    """Return the threads per process if ``processes`` of them share the cores available to this one; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)
