"""From a recipe to the parts of a training: model, mixer, criterion, optimizer, schedule.

All of them come from timm's factories. ``model_problems`` tries them on meta tensors, so that a wrong recipe is refused
before any data is read or any file is written.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.loss import BinaryCrossEntropy, JsdCrossEntropy
from timm.optim import create_optimizer_v2, list_optimizers, optimizer_kwargs
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler_factory import scheduler_kwargs
from torch import Tensor, nn

from ..core.loss import Criterion, bce_softmax, cross_entropy
from ..core.mixer import Mixer
from ..data.transforms import Augmentation
from ..errors import HubError, SiteError, UserError, brief, nearest, one_line
from ..recipe import Recipe
from ..recipe.parts import AugmentSpec, ImageSpec
from ..system.network import error_chain, is_unreachable
from .pretrained import freeze_modules, from_file, require_loaded, zero_head


def precision_of(recipe: Recipe) -> str | None:
    """Return the mixed precision of a recipe in Accelerate's words; None leaves it to the launch."""
    return {"bfloat16": "bf16", "float16": "fp16"}[recipe.amp_dtype] if recipe.amp else None


def batch_problems(recipe: Recipe, num_processes: int) -> list[str]:
    """Return a line if the processes and accumulation steps do not divide the batch."""
    parts = num_processes * recipe.grad_accum_steps
    if recipe.batch_size % parts == 0:
        return []
    near = sorted({max(1, recipe.batch_size // parts) * parts, (recipe.batch_size // parts + 1) * parts})
    return [
        f"batch_size {recipe.batch_size} is not divisible by {num_processes} processes x {recipe.grad_accum_steps} "
        f"accumulation steps: use a batch_size of {' or '.join(map(str, near))}, or another number of processes"
    ]


def build_model(recipe: Recipe, pretrained_path: Path | None = None) -> nn.Module:
    """Make the model of a recipe, in train mode.

    Args:
        recipe: the recipe.
        pretrained_path: a local file of the pretrained weights; None for timm's own, from the Hub.

    Raises:
        UserError: the weights cannot be loaded or do not fit.
        HubError: the Hub cannot be reached.
    """
    optional: dict[str, Any] = {"drop_path_rate": recipe.drop_path} if recipe.drop_path is not None else {}
    if recipe.drop:
        optional["drop_rate"] = recipe.drop
    optional |= recipe.model_kwargs
    if recipe.pretrained and pretrained_path is not None:
        overlay = optional.get("pretrained_cfg_overlay")
        optional["pretrained_cfg_overlay"] = from_file(pretrained_path, recipe.model, recipe.num_classes, overlay)
    try:
        model = timm.create_model(
            recipe.model,
            pretrained=recipe.pretrained,
            num_classes=recipe.num_classes,
            in_chans=recipe.input_size[0],
            **optional,
        )
    except (OSError, RuntimeError) as error:
        if not recipe.pretrained:
            raise
        line = f"cannot load the pretrained weights of {recipe.model}"
        if pretrained_path is not None:
            raise UserError(f"{line} from {pretrained_path}: {one_line(error, 200)}") from error
        way = "or give a local file of them (--pretrained-path)"
        if is_unreachable(error_chain(error)):
            network = "check the network, HF_HUB_OFFLINE and HF_ENDPOINT"
            reason = f"not in the Hub's cache, and the Hub cannot be reached: {network}, {way}"
            raise HubError(f"{line}: {reason}", retry=True) from error
        raise UserError(f"{line}: {one_line(error, 200)}; {way}") from error
    if recipe.pretrained and pretrained_path is not None:
        require_loaded(model, pretrained_path)
    if recipe.head_init == "zero":
        zero_head(model)
    if recipe.freeze is not None:
        freeze_modules(model, recipe.freeze)
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
        schedule=recipe.schedule,
        num_splits=recipe.aug_splits or 1,
    )


def build_criterion(recipe: Recipe, weight: Tensor | None = None) -> Criterion:
    """Return the loss of a recipe, on logits and soft targets; ``weight`` (K,) has a weight per class.

    With weights, the loss of a sample is the sum over classes of ``weight * target * -log(p)``, so that a mixed target
    is weighted by the share of each class in it; the batch is averaged over its samples, not over their weights.
    """
    if recipe.loss == "jsd":
        return JsdCrossEntropy(recipe.aug_splits, smoothing=0.0)  # the mixer smooths
    if recipe.loss == "bce" and (recipe.bce_sum or recipe.bce_target_thresh is not None):
        threshold, summed = recipe.bce_target_thresh, recipe.bce_sum
        return BinaryCrossEntropy(smoothing=0.0, target_threshold=threshold, sum_classes=summed, weight=weight)
    if recipe.loss == "bce":
        return nn.BCEWithLogitsLoss(weight=weight)
    if weight is not None:
        return nn.CrossEntropyLoss(weight=weight)
    return bce_softmax if recipe.loss == "bce_softmax" else cross_entropy


def build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer of a recipe."""
    return create_optimizer_v2(model, **optimizer_kwargs(recipe), filter_bias_and_bn=recipe.filter_bias_and_bn)


def build_scheduler(recipe: Recipe, optimizer: torch.optim.Optimizer, updates_per_epoch: int) -> tuple[Any, int]:
    """Return timm's scheduler (None for a constant rate) and the number of epochs with warmup and cooldown."""
    arguments = scheduler_kwargs(recipe)
    # timm's multistep drops one epoch (or update) before each milestone; recipes follow the paper's table.
    later = 0.5 / updates_per_epoch if recipe.sched_on_updates else 1
    arguments["decay_milestones"] = [milestone + later for milestone in recipe.decay_milestones]
    if recipe.sched == "none":
        return None, recipe.epochs
    scheduler, num_epochs = create_scheduler_v2(optimizer, **arguments, updates_per_epoch=updates_per_epoch)
    return scheduler, num_epochs


def model_problems(recipe: Recipe) -> list[str]:
    """Return what is wrong with augmentation, optimizer, model and method, without allocating memory for them."""
    problems = []
    if recipe.opt not in list_optimizers():
        hint = nearest(recipe.opt, map(str, list_optimizers())) or "; see timm.optim.list_optimizers()"
        problems.append(f"opt: timm has no optimizer {brief(recipe.opt)}{hint}")
    try:
        augmentation = Augmentation(AugmentSpec.of(recipe), ImageSpec.of(recipe), crop=True)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        problems.append(f"aa: timm does not accept {brief(recipe.aa)}: {one_line(error, 200)}")
    else:
        problems += _policy_problems(augmentation, recipe.aa)
    problems += _ignored_sections(recipe.aa)
    if recipe.torchcompile is not None:
        backends = torch.compiler.list_backends(exclude_tags=())
        if recipe.torchcompile not in backends:
            hint = nearest(recipe.torchcompile, backends) or f"; it has {', '.join(backends)}"
            problems.append(f"torchcompile: torch has no backend {brief(recipe.torchcompile)}{hint}")
    if not timm.is_model(recipe.model):
        return [*problems, f"model: timm has no model {brief(recipe.model)}{nearest(recipe.model, timm.list_models())}"]
    try:
        with torch.device("meta"):
            model = build_model(replace(recipe, pretrained=False, pretrained_path=None))
    except UserError as error:
        return [*problems, *error.problems]
    except Exception as error:  # model constructors raise all kinds of errors
        return [*problems, f"model: timm cannot create {brief(recipe.model)}: {one_line(error, 300)}"]
    if not any(parameter.requires_grad for parameter in model.parameters()):
        problems.append(f"freeze {' '.join(recipe.freeze or ())}: nothing is left to train")
    elif recipe.opt in list_optimizers():
        problems += _optimizer_problems(recipe, model)
    try:
        build_mixer(recipe, model).detach()
    except SiteError as error:
        problems.append(f"mix {recipe.mix_name}: {error.for_caller('mix_sites')}")
    except (TypeError, ValueError) as error:
        problems.append(f"mix {recipe.mix_name}: {error}")
    return problems + _size_problems(recipe, model)


def _optimizer_problems(recipe: Recipe, model: nn.Module) -> list[str]:
    """Return a line if the optimizer does not take its settings; ``model`` is on the meta device."""
    try:
        build_optimizer(recipe, model)
    except Exception as error:  # optimizers raise all kinds of errors
        betas = "" if recipe.opt_betas is None else f" with opt_betas {' '.join(map(str, recipe.opt_betas))}"
        return [f"opt: timm cannot create {recipe.opt}{betas}: {type(error).__name__}: {one_line(error, 200)}"]
    return []


def _policy_problems(augmentation: Augmentation, aa: str | None) -> list[str]:
    """Return a line if an operation of timm's policies fails: some give Pillow values that it refuses by now."""
    try:
        augmentation.try_policies()
    except (TypeError, ValueError) as error:
        return [f"aa: an operation of timm's {brief(aa)} fails with this Pillow: {one_line(error, 200)}"]
    return []


def _ignored_sections(aa: str | None) -> list[str]:
    """Return a line per section of an augmentation that timm ignores silently, such as the mXX of rand-mXX."""
    sections = [] if aa is None else aa.split("-")
    if not sections or not sections[0].startswith(("rand", "augmix")):
        return []
    return [
        f"aa: timm would ignore {brief(section)} of {brief(aa)}: a section is a letter and a number, such as m9"
        for section in sections[1:]
        if not any(character.isdigit() for character in section) and not section.startswith("t")
    ]


def _size_problems(recipe: Recipe, model: nn.Module) -> list[str]:
    """Return a line if the model does not take images of the recipe's size; ``model`` is on the meta device."""
    try:
        with torch.device("meta"), torch.no_grad():
            model.eval()(torch.zeros(2, *recipe.input_size))
    except AssertionError as error:  # other errors of a pass without values do not depend on the size
        size = " x ".join(map(str, recipe.input_size[1:]))
        return [
            f"model: {recipe.model} does not take images of {size} pixels: {one_line(error, 120)}. Set input_size, or "
            f"model_kwargs img_size={recipe.input_size[1]}"
        ]
    except Exception:
        return _pass_problems(recipe)
    return []


def _pass_problems(recipe: Recipe) -> list[str]:
    """Return a line if the model cannot process images at all, found by a pass with values."""
    try:
        with torch.no_grad():
            build_model(replace(recipe, pretrained=False, pretrained_path=None)).eval()(
                torch.zeros(2, *recipe.input_size)
            )
    except Exception as error:  # models raise all kinds of errors
        return [f"model: {recipe.model} cannot process images with these settings: {one_line(error, 200)}"]
    return []


def describe_batch(recipe: Recipe, num_processes: int) -> str:
    """Return how a batch is split among processes and accumulation steps."""
    images = recipe.batch_size // (num_processes * recipe.grad_accum_steps)
    parts = [f"{num_processes} process{'es' if num_processes > 1 else ''}"]
    if recipe.grad_accum_steps > 1:
        parts.append(f"{recipe.grad_accum_steps} accumulation steps")
    splits = f", each in {recipe.aug_splits} splits" if recipe.aug_splits else ""
    return f"batch {recipe.batch_size} = {' x '.join(parts)} x {images} images{splits}"
