"""From a recipe to the things that train: accelerator, model, mixer, criterion, optimiser, schedule.

Everything comes from the factories of timm and Accelerate. ``model_problems`` tries it all without memory or time, so
that a wrong recipe is refused before anything is opened or written.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from accelerate import Accelerator
from timm.optim import create_optimizer_v2, list_optimizers, optimizer_kwargs
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler_factory import scheduler_kwargs
from torch import nn

from ..core.criterion import Criterion, bce_softmax, cross_entropy
from ..core.mixer import Mixer
from ..data.transforms import Augmentation
from ..errors import UserError, nearest
from ..recipe import Recipe
from ..recipe.parts import AugmentSpec, ImageSpec
from ..runs import accelerator as accelerators


def make_accelerator(
    recipe: Recipe, *, trackers: Sequence[str] = (), log_dir: Path | None = None, threads: int | None = None
) -> Accelerator:
    """Make the Accelerator for a recipe, and refuse what would be silently wrong.

    Raises:
        UserError: a launch that this loop does not support, or a batch that the processes cannot share.
    """
    precision = None if not recipe.amp else {"bfloat16": "bf16", "float16": "fp16"}[recipe.amp_dtype]
    accelerator = accelerators.make_accelerator(
        precision=precision, trackers=trackers, log_dir=log_dir, threads=threads
    )
    parts = accelerator.num_processes * recipe.grad_accum_steps
    if recipe.batch_size % parts:
        near = sorted({max(1, recipe.batch_size // parts) * parts, (recipe.batch_size // parts + 1) * parts})
        raise UserError(
            f"batch_size {recipe.batch_size} cannot be divided by {accelerator.num_processes} processes x "
            f"{recipe.grad_accum_steps} accumulation steps: give --batch-size {' or '.join(map(str, near))}, or start "
            f"another number of processes"
        )
    return accelerator


def build_model(recipe: Recipe) -> nn.Module:
    """Make the model of a recipe, in train mode."""
    optional = {"drop_path_rate": recipe.drop_path} if recipe.drop_path is not None else {}
    if recipe.drop:
        optional["drop_rate"] = recipe.drop
    try:
        model = timm.create_model(
            recipe.model,
            pretrained=recipe.pretrained,
            num_classes=recipe.num_classes,
            in_chans=recipe.input_size[0],
            **optional | recipe.model_kwargs,
        )
    except (OSError, RuntimeError) as error:
        if not recipe.pretrained:
            raise
        text = " ".join(str(error).split())[:200]
        raise UserError([f"the pretrained weights of {recipe.model} cannot be loaded: {text}"]) from error
    if recipe.grad_checkpointing:
        model.set_grad_checkpointing(True)  # type: ignore[operator]
    return model.train()


def build_mixer(recipe: Recipe, model: nn.Module) -> Mixer:
    """Make the mixer of a recipe for its model."""
    return Mixer(
        model,
        recipe.method,
        num_classes=recipe.num_classes,
        label_smoothing=recipe.smoothing,
        seed=recipe.seed,
    )


def build_criterion(recipe: Recipe) -> Criterion:
    """Return the loss on logits and soft targets."""
    if recipe.loss == "bce":
        return nn.BCEWithLogitsLoss()
    return bce_softmax if recipe.loss == "bce_softmax" else cross_entropy


def build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    return create_optimizer_v2(model, **optimizer_kwargs(recipe), filter_bias_and_bn=recipe.filter_bias_and_bn)


def build_scheduler(recipe: Recipe, optimizer: torch.optim.Optimizer, updates_per_epoch: int) -> tuple[Any, int]:
    """Return timm's scheduler (None for a constant rate) and the number of epochs with warm-up and cool-down."""
    arguments = scheduler_kwargs(recipe)
    # timm's multistep drops one epoch (or update) before each milestone; a recipe means what the paper's table says.
    later = 0.5 / updates_per_epoch if recipe.sched_on_updates else 1
    arguments["decay_milestones"] = [milestone + later for milestone in recipe.decay_milestones]
    if recipe.sched == "none":
        return None, recipe.epochs
    scheduler, num_epochs = create_scheduler_v2(optimizer, **arguments, updates_per_epoch=updates_per_epoch)
    return scheduler, num_epochs


def model_problems(recipe: Recipe) -> list[str]:
    """Return what is wrong with augmentation, optimiser, model and method, tried on tensors without data."""
    problems = []
    if recipe.opt not in list_optimizers():
        hint = nearest(recipe.opt, map(str, list_optimizers())) or "; see timm.optim.list_optimizers()"
        problems.append(f"opt: timm has no optimiser {recipe.opt!r}{hint}")
    try:
        Augmentation(AugmentSpec.of(recipe), ImageSpec.of(recipe), crop=True)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        problems.append(f"aa: timm cannot make {recipe.aa!r} of it: {error}")
    if not timm.is_model(recipe.model):
        return [*problems, f"model: timm has no model {recipe.model!r}{nearest(recipe.model, timm.list_models())}"]
    try:
        with torch.device("meta"):
            model = build_model(Recipe.from_dict(recipe.to_dict() | {"pretrained": False}))
    except Exception as error:  # whatever a model's constructor makes of its arguments
        return [*problems, f"model {recipe.model} cannot be made: {' '.join(str(error).split())[:300]}"]
    try:
        build_mixer(recipe, model).detach()
    except (TypeError, ValueError) as error:
        problems.append(f"mix {recipe.mix}: {error}")
    return problems


def describe_batch(recipe: Recipe, num_processes: int) -> str:
    """Return how a batch is shared out."""
    share = recipe.batch_size // (num_processes * recipe.grad_accum_steps)
    parts = [f"{num_processes} process{'es' if num_processes > 1 else ''}"]
    if recipe.grad_accum_steps > 1:
        parts.append(f"{recipe.grad_accum_steps} accumulation steps")
    return f"batch {recipe.batch_size} = {' x '.join(parts)} x {share} images"
