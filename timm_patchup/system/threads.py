"""How many threads a process takes on the CPU where nobody chose."""

import os


def share_of_cores(processes: int) -> int:
    """Return the threads of each of so many processes: its share of the cores this one may use, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)
