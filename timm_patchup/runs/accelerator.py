"""The Accelerator that training, evaluation and timing share, and the launches that are refused.

Other modules take an Accelerator as an argument; only this one reads the environment of a launch.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, GradientAccumulationPlugin, parse_flag_from_env

from ..errors import OtherProcessFailed, UserError, one_line
from ..system.output import say
from ..system.threads import share_of_cores
from .together import is_lost_process

# What a launch configuration may ask for and the package does not support; on the CPU, Accelerate ignores it.
_SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")
_SUPPORTED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.MULTI_XPU)


def make_accelerator(
    *,
    precision: str | None = None,
    trackers: Sequence[str] = (),
    log_dir: Path | None = None,
    threads: int | None = None,
) -> Accelerator:
    """Make the Accelerator, and refuse launches that would go wrong silently.

    On a machine without an accelerator it uses the CPU explicitly: only then do several processes started by
    ``accelerate launch --multi_gpu`` find each other.

    Args:
        precision: ``"bf16"`` or ``"fp16"``; None leaves it to the launch configuration.
        trackers: names of Accelerate's trackers.
        log_dir: folder of the trackers.
        threads: CPU threads per process; None for its share of the cores.

    Raises:
        UserError: everything about the launch that is not supported.
    """
    asked = [name for name in _SHARDED if parse_flag_from_env(f"ACCELERATE_USE_{name}")]
    if asked:
        raise UserError(f"{', '.join(asked)} is not supported: launch with one process or with --multi_gpu (DDP)")
    try:
        accelerator = Accelerator(
            cpu=not _has_accelerator(),
            mixed_precision=precision,
            log_with=list(trackers) or None,
            project_dir=None if log_dir is None else str(log_dir),
            step_scheduler_with_optimizer=False,
            # The recipe sets gradient accumulation; a number in the environment would divide gradients once more.
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        )
    except (ValueError, ImportError) as error:
        raise UserError(f"Accelerate refuses this launch: {one_line(error)}") from error
    except RuntimeError as error:
        if is_lost_process(error):
            raise OtherProcessFailed from error
        raise
    problems = []
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size != accelerator.num_processes:
        problems.append(
            f"{world_size} processes were started that do not know of each other (Accelerate sees "
            f"{accelerator.num_processes}): launch with recipes/accelerate/cpu_2.yaml or --multi_gpu --num_processes N"
        )
    if accelerator.distributed_type not in _SUPPORTED:
        name = str(accelerator.distributed_type).rsplit(".", 1)[-1]
        problems.append(f"{name} is not supported: launch with one process or with --multi_gpu (DDP)")
    if accelerator.mixed_precision == "fp16" and accelerator.device.type == "cpu":
        problems.append("float16 needs a GPU: on the CPU use amp_dtype bfloat16")
    if problems:
        raise UserError(problems)
    if accelerator.device.type == "cpu":
        local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        # accelerate launch sets OMP_NUM_THREADS to 1 by default, which would leave cores idle.
        torch.set_num_threads(threads or share_of_cores(local))
    return accelerator


def say_once(accelerator: Accelerator, *lines: str) -> None:
    """Print lines in one process per machine."""
    if accelerator.is_local_main_process:
        say(*lines)


def precision_of_launch() -> str:
    """Return the mixed precision that ``accelerate launch`` asks for, in its words; ``"no"`` for none."""
    return os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()


def _has_accelerator() -> bool:
    if parse_flag_from_env("ACCELERATE_USE_CPU"):
        return False
    xpu = getattr(torch, "xpu", None)
    return torch.cuda.is_available() or torch.backends.mps.is_available() or bool(xpu and xpu.is_available())
