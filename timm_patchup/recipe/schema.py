"""The keys of a recipe: one flat namespace with timm's names, each with its type, range, default and help.

A ``Recipe`` is frozen and complete. Keys that timm has mean what they mean there, with two exceptions:
``batch_size`` is the whole batch of one update, whatever the number of processes, and at ``decay_milestones`` the rate
drops after so many epochs, not one before. Settings of the method are the keys ``mix_*``.
"""

import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from ..errors import UserError, nearest
from ..methods import list_methods, list_settings, method_parameters

MIX_PREFIX = "mix_"
# Keys that change neither data nor weights: they may differ when a run is resumed.
HARMLESS = frozenset({"workers", "checkpoint_steps", "checkpoint_hist", "log_interval", "validation_batch_size"})


def key(
    default: Any,
    help: str,
    *,
    low: float = float("-inf"),
    high: float = float("inf"),
    above: float = float("-inf"),
    choices: Sequence[str] | None = None,
) -> Any:
    """Declare a key. ``low`` and ``high`` belong to its range, ``above`` does not; of a list they bind each value."""
    meta = {"help": help, "low": low, "high": high, "above": above, "choices": choices}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=meta)
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class Recipe:
    """One experiment: data, images, model, method, optimisation, schedule, run."""

    # Data
    dataset: str = key("fashion_mini", "hfds/OWNER/NAME on the Hub, or fashion_mini, which is in the package")
    dataset_config: str | None = key(None, "configuration of a Hub data set that has several")
    train_split: str = key("train", "split to train on")
    val_split: str = key("test", "split the finished model is tested on, once")
    val_fraction: float = key(0.1, "share of the train split held out to choose the best epoch", low=0, high=0.9)
    split_seed: int = key(0, "seed of the held-out share and of every subset, the same for all runs", low=0)
    input_key: str = key("image", "column of the images")
    target_key: str = key("label", "column of the labels")
    num_classes: int = key(10, "number of classes", low=1)
    train_per_class: int | None = key(None, "train on so many images of each class, for scarce data", low=1)
    limit: int | None = key(None, "use so many samples of each split, for a dry try", low=1)
    workers: int = key(0, "loader processes for each training process", low=0)
    # Images
    input_size: list[int] = key([3, 32, 32], "channels, height, width", low=1)
    mean: list[float] = key([0.5, 0.5, 0.5], "mean of each channel", low=0, high=1)
    std: list[float] = key([0.5, 0.5, 0.5], "standard deviation of each channel", above=0)
    crop_pct: float = key(1.0, "share of the image that is evaluated, in the centre", above=0, high=1)
    crop_mode: str = key(
        "center", "how an evaluated image gets its size, as in timm", choices=("center", "squash", "border")
    )
    interpolation: str = key("bilinear", "how images are resized", choices=("nearest", "bilinear", "bicubic"))
    train_interpolation: str = key(
        "bilinear", "the same for timm's random crop", choices=("nearest", "bilinear", "bicubic", "random")
    )
    crop_padding: int | None = key(
        None, "small images: decoded once and kept as bytes, cropped from so much padding; else timm's crop", low=0
    )
    scale: list[float] = key([0.08, 1.0], "range of areas of timm's random crop", above=0)
    ratio: list[float] = key([0.75, 1.3333], "range of aspect ratios of timm's random crop", above=0)
    hflip: float = key(0.5, "probability of a horizontal flip", low=0, high=1)
    vflip: float = key(0.0, "probability of a vertical flip", low=0, high=1)
    color_jitter: float = key(0.0, "strength of colour jitter", low=0)
    lighting: float = key(0.0, "strength of AlexNet's PCA lighting", low=0)
    aa: str | None = key(None, "timm's automatic augmentation: original, rand-m9-mstd0.5, augmix-m3-w3, ...")
    reprob: float = key(0.0, "probability of random erasing", low=0, high=1)
    remode: str = key("pixel", "filling of random erasing", choices=("const", "rand", "pixel"))
    recount: int = key(1, "rectangles of random erasing", low=1)
    # Model
    model: str = key("preactresnet8", "a model of timm's registry")
    model_kwargs: dict[str, Any] = key({}, "more arguments of the model")
    pretrained: bool = key(False, "start from timm's pretrained weights")
    drop: float = key(0.0, "dropout before the classifier", low=0, high=1)
    drop_path: float | None = key(None, "stochastic depth, for models that have it", low=0, high=1)
    grad_checkpointing: bool = key(False, "recompute activations in the backward pass")
    channels_last: bool = key(False, "memory format of model and images")
    torchcompile: str | None = key(None, "compile the model with this backend, such as inductor")
    # Method
    mix: str = key("none", "the method, one of timm_patchup.list_methods()")
    mix_settings: dict[str, Any] = key({}, "settings of the method, the keys mix_*")
    smoothing: float = key(0.0, "label smoothing", low=0, high=0.999)
    loss: str = key(
        "cross_entropy",
        "loss on soft targets; bce_softmax is that of the authors' code",
        choices=("cross_entropy", "bce", "bce_softmax"),
    )
    # Optimisation
    batch_size: int = key(100, "the whole batch of one update, over all processes and accumulation steps", low=1)
    grad_accum_steps: int = key(1, "parts in which each process works through its share of a batch", low=1)
    validation_batch_size: int = key(500, "batch of each process in evaluation", low=1)
    opt: str = key("sgd", "an optimiser of timm; sgd is with Nesterov momentum, as in timm")
    lr: float = key(0.1, "learning rate of the whole batch, not scaled by anything", above=0)
    momentum: float = key(0.9, "momentum", low=0, high=1)
    weight_decay: float = key(1e-4, "weight decay", low=0)
    filter_bias_and_bn: bool = key(True, "leave biases and norms without weight decay, as timm does")
    opt_eps: float | None = key(None, "epsilon of the optimiser", above=0)
    opt_betas: list[float] | None = key(None, "betas of the optimiser", low=0, high=1)
    clip_grad: float | None = key(None, "clip gradients at this value", above=0)
    clip_mode: str = key("norm", "what is clipped", choices=("norm", "value", "agc"))
    # Schedule
    epochs: int = key(10, "number of epochs, without cool-down", low=1)
    sched: str = key("cosine", "schedule", choices=("cosine", "tanh", "step", "multistep", "poly", "none"))
    sched_on_updates: bool = key(False, "move the schedule with every update instead of every epoch")
    decay_milestones: list[int] = key([30, 60], "multistep: the rate drops after so many epochs", low=1)
    decay_epochs: float = key(30.0, "step: the rate drops every so many epochs", above=0)
    decay_rate: float = key(0.1, "factor of each drop", above=0)
    min_lr: float = key(0.0, "lowest rate", low=0)
    warmup_epochs: int = key(0, "epochs of warm-up", low=0)
    warmup_lr: float = key(1e-5, "rate at the start of warm-up", low=0)
    warmup_prefix: bool = key(False, "warm-up comes before the schedule instead of over its start")
    cooldown_epochs: int = key(0, "epochs at the lowest rate after the schedule", low=0)
    # Average and precision
    model_ema: bool = key(False, "keep an average of the weights, and evaluate that")
    model_ema_decay: float = key(0.9998, "decay of the average", low=0, high=1)
    model_ema_warmup: bool = key(False, "let the decay grow at first")
    amp: bool = key(False, "mixed precision; off leaves it to the launch configuration")
    amp_dtype: str = key("bfloat16", "dtype of mixed precision", choices=("bfloat16", "float16"))
    # Run
    seed: int = key(0, "seed of everything but the splits", low=0)
    dist_bn: str = key(
        "reduce",
        "norm statistics after each epoch: the mean over the processes, or those of the first",
        choices=("reduce", "broadcast"),
    )
    val_interval: int = key(1, "validate every so many epochs, and after the last", low=1)
    eval_metric: str = key("top1", "what makes an epoch the best: top1 or loss", choices=("top1", "loss"))
    checkpoint_steps: int = key(
        0, "a checkpoint every so many updates as well as every epoch; 0 for epochs only", low=0
    )
    checkpoint_hist: int = key(2, "checkpoints that are kept", low=1)
    log_interval: int = key(50, "updates between two refreshes of the progress bar", low=1)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """Make a recipe from flat keys; raise UserError with everything that is wrong with them."""
        problems: list[str] = []
        known = {f.name: f for f in fields(cls) if f.name != "mix_settings"}
        hints = get_type_hints(cls)
        taken: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        known_settings = list_settings()
        for name, value in values.items():
            if name in known:
                try:
                    taken[name] = _typed(name, value, hints[name], known[name].metadata)
                except ValueError as error:
                    problems.append(str(error))
            elif name.startswith(MIX_PREFIX) and name.removeprefix(MIX_PREFIX) in known_settings:
                settings[name.removeprefix(MIX_PREFIX)] = _plain(value)
            else:
                problems.append(f"unknown key {name!r}{nearest(name, list_keys())}")
        mix = taken.get("mix", "none")
        problems += _method_problems(mix, settings)
        problems += cls(**taken)._contradictions()
        if problems:
            raise UserError(problems)
        # Defaults are written out: a resolved recipe says all that was used, whatever later defaults are.
        defaults = {name: _plain(parameter.default) for name, parameter in list_settings(mix).items()}
        return cls(**taken, mix_settings=defaults | settings)

    def to_dict(self) -> dict[str, Any]:
        """Return the flat keys, with the settings of the method as ``mix_*``."""
        flat: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "mix_settings":
                flat.update({f"{MIX_PREFIX}{name}": setting for name, setting in value.items()})
            else:
                flat[f.name] = value
        return flat

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, default_flow_style=None, width=100)

    def differences(self, other: "Recipe") -> list[str]:
        """Return the keys in which two recipes differ and that matter to the result."""
        mine, theirs = self.to_dict(), other.to_dict()
        names = [name for name in (mine | theirs) if name not in HARMLESS]
        return [name for name in names if mine.get(name) != theirs.get(name)]

    def _contradictions(self) -> list[str]:
        problems = []
        channels = self.input_size[0]
        if len(self.input_size) != 3 or channels not in (1, 3):
            problems.append(f"input_size must be channels (1 or 3), height, width, got {self.input_size}")
        else:
            for name in ("mean", "std"):
                if len(getattr(self, name)) != channels:
                    problems.append(f"{name} needs {channels} values, one a channel, got {getattr(self, name)}")
        for name in ("scale", "ratio"):
            low_high = getattr(self, name)
            if len(low_high) != 2 or low_high[0] > low_high[1]:
                problems.append(f"{name} must be a range of two values, low then high, got {low_high}")
        if self.batch_size % self.grad_accum_steps:
            problems.append(
                f"batch_size {self.batch_size} cannot be divided by grad_accum_steps {self.grad_accum_steps}"
            )
        if self.sched == "multistep" and sorted(set(self.decay_milestones)) != self.decay_milestones:
            problems.append(f"decay_milestones must increase, got {self.decay_milestones}")
        if self.warmup_epochs and self.warmup_epochs >= self.epochs and not self.warmup_prefix:
            problems.append(f"warmup_epochs {self.warmup_epochs} must be fewer than epochs {self.epochs}")
        return problems or [f"{name} does nothing {why}" for name, why in self._idle_keys()]

    def _idle_keys(self) -> Iterator[tuple[str, str]]:
        """Give the keys that were set and that another one makes idle, each with the reason and the way out."""
        idle: dict[str, str] = {}
        if self.crop_padding is not None:
            reason = "where small images are cropped from padding: --crop-padding none takes timm's random crop"
            idle |= dict.fromkeys(("scale", "ratio", "train_interpolation"), reason)
        if self.aa is not None and "3a" not in self.aa:
            idle["color_jitter"] = "beside aa, as in timm: give --color-jitter 0"
        if self.sched in ("step", "multistep", "none"):
            idle |= dict.fromkeys(("min_lr", "cooldown_epochs"), f"with the schedule {self.sched}")
        if self.sched == "none":
            idle["warmup_epochs"] = "with the schedule none"
        defaults = Recipe()
        yield from ((name, why) for name, why in idle.items() if getattr(self, name) != getattr(defaults, name))


def list_keys() -> list[str]:
    """Return all keys, those of the methods too."""
    own = [f.name for f in fields(Recipe) if f.name != "mix_settings"]
    return own + [f"{MIX_PREFIX}{name}" for name in list_settings()]


def _method_problems(mix: str, settings: Mapping[str, Any]) -> list[str]:
    if mix not in list_methods():
        return [f"mix: unknown method {mix!r}{nearest(mix, list_methods())}"]
    known = method_parameters(mix)
    return [
        f"{MIX_PREFIX}{name} is not a setting of {mix}; it has {', '.join(MIX_PREFIX + k for k in list_settings(mix))}"
        for name in settings
        if name not in known
    ]


def _plain(value: Any) -> Any:
    """Return a setting as YAML gives it back."""
    return list(value) if isinstance(value, tuple) else value


def _typed(name: str, value: Any, hint: Any, meta: Mapping[str, Any]) -> Any:
    """Return the value in the type of its key, or raise ValueError with what was expected."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        if value is None:
            return None
        return _typed(name, value, arguments[0], meta)
    if origin is list:
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        if not items:
            raise ValueError(f"{name} must hold at least one value")
        return [_typed(name, item, arguments[0], meta) for item in items]
    if origin is dict:
        if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
            raise ValueError(f"{name} must be a mapping of names to values, got {value!r}")
        return dict(value)
    if hint is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, got {value!r}")
        return value
    if hint is str:
        if not isinstance(value, str):
            raise ValueError(f"{name} must be a word, got {value!r}")
        if meta["choices"] is not None and value not in meta["choices"]:
            raise ValueError(f"{name} must be one of {', '.join(meta['choices'])}, got {value!r}")
        return value
    return _number(name, value, hint, meta)


def _number(name: str, value: Any, hint: type, meta: Mapping[str, Any]) -> Any:
    low, high, above = meta["low"], meta["high"], meta["above"]
    bounds = [f"above {above:g}"] if isfinite(above) else []
    bounds += [f"at least {low:g}"] if isfinite(low) else []
    bounds += [f"at most {high:g}"] if isfinite(high) else []
    kind = f"{name} must be a {'whole ' if hint is int else ''}number, {' and '.join(bounds) or 'finite'}"
    if isinstance(value, str) and hint is float:
        with suppress(ValueError):
            value = float(value)  # YAML 1.1 reads 1e-4 as a word
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (hint is float and isinstance(value, float))):
        raise ValueError(f"{kind}, got {value!r}")
    if not isfinite(value) or value < low or value > high or value <= above:
        raise ValueError(f"{kind}, got {value!r}")
    return hint(value)
