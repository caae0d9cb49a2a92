"""The keys of a recipe: one flat namespace with timm's names, each declared once with type, range, default and help.

A ``Recipe`` is frozen, complete and checked when it is made. Keys that timm has mean what they mean there, with two
exceptions: ``batch_size`` is the whole batch of one update, whatever the number of processes, and the rate drops after
``decay_milestones`` epochs, not one before. Settings of the method are the keys ``mix_*``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from ..core.method import Method, list_methods, method_settings
from ..core.one_of import OneOf, make_methods, read_methods
from ..core.outside import unknown_outside
from ..core.schedule import Schedule
from ..core.settings import AUTO, CheckedSettings, collecting, on, raise_together, setting, settings_of
from ..errors import UserError, brief, nearest
from . import rules

MIX_PREFIX = "mix_"


@dataclass(frozen=True, kw_only=True)
class Recipe(CheckedSettings):
    """One experiment: data, images, model, method, optimizer, schedule, run."""

    # Dataset
    dataset: str = setting(
        "fashion_mini", "hfds/OWNER/NAME on the Hub, fashion_mini (in the package), or a name for data_dir", auto=True
    )
    dataset_config: str | None = setting(None, "configuration of a Hub dataset that has several")
    train_split: str = setting("train", "split to train on", auto=True)
    val_split: str = setting("test", "split the finished model is tested on, once", auto=True)
    val_fraction: float = setting(
        0.1,
        "share of the train split held out to choose the best epoch",
        low=0,
        high=0.9,
        auto=True,
        needs=rules.no_number_per_class,
    )
    val_per_class: int | None = setting(
        None, "hold out this many images per class instead of a share", low=1, needs=rules.off("select_split")
    )
    val_augment: bool = setting(
        False, "augment held-out images as training images, as the authors do", needs=rules.held_out
    )
    select_split: str | None = setting(
        None, "split that chooses the best epoch, instead of a share of the train split", auto=True
    )
    test_fraction: float = setting(
        0.0, "share of the train split set apart as the test set, for data without one", low=0, high=0.9, auto=True
    )
    split_seed: int = setting(
        0, "seed of the held-out share and of every subset, the same for all runs", low=0, needs=rules.a_subset
    )
    split_by_seed: bool = setting(
        False, "draw what is held out and trained on from the seed of the run, as the authors do", needs=rules.a_subset
    )
    input_key: str = setting("image", "column of the images", auto=True)
    target_key: str = setting("label", "column of the labels", auto=True)
    num_classes: int = setting(10, "number of classes", low=1, auto=True)
    train_per_class: int | None = setting(None, "train on this many images per class, for scarce data", low=1)
    train_at_most: int | None = setting(
        None, "train on at most this many images per class", low=1, needs=rules.off("train_per_class")
    )
    limit: int | None = setting(None, "use this many samples of each split, for a quick trial run", low=1)
    workers: int = setting(0, "loader processes per training process", low=0, high=256, fixed=False)
    # Images and augmentation
    input_size: list[int] = setting([3, 32, 32], "channels, height, width", low=1, auto=True)
    mean: list[float] = setting([0.5, 0.5, 0.5], "mean per channel", low=0, high=1, auto=True)
    std: list[float] = setting([0.5, 0.5, 0.5], "standard deviation per channel", above=0, auto=True)
    crop_pct: float = setting(
        1.0,
        "share of the image that the evaluated centre crop covers",
        above=0,
        high=1,
        auto=True,
        needs=rules.timms_crop,
    )
    crop_mode: Literal["center", "squash", "border"] = setting(
        "center", "how evaluated images are resized and cropped, as in timm", auto=True, needs=rules.timms_crop
    )
    interpolation: Literal["nearest", "bilinear", "bicubic"] = setting("bilinear", "how images are resized", auto=True)
    train_interpolation: Literal["nearest", "bilinear", "bicubic", "random"] = setting(
        "bilinear", "how timm's random crop resizes", auto=True, needs=rules.timms_crop
    )
    crop_padding: int | None = setting(
        None, "small images: decoded once, kept as bytes and cropped from this padding; none for timm's crop", low=0
    )
    crop_padding_mode: Literal["constant", "edge", "reflect", "symmetric"] = setting(
        "constant", "what fills the padding, in torchvision's words; constant is black", needs=on("crop_padding")
    )
    scale: list[float] = setting([0.08, 1.0], "range of areas of timm's random crop", above=0, needs=rules.timms_crop)
    ratio: list[float] = setting(
        [0.75, 1.3333], "range of aspect ratios of timm's random crop", above=0, needs=rules.timms_crop
    )
    hflip: float = setting(0.5, "probability of a horizontal flip", low=0, high=1)
    vflip: float = setting(0.0, "probability of a vertical flip", low=0, high=1)
    color_jitter: float = setting(0.0, "strength of colour jitter", low=0, needs=rules.no_policy)
    lighting: float = setting(0.0, "strength of AlexNet's PCA lighting", low=0)
    aa: str | None = setting(None, "timm's automatic augmentation: original, rand-m9-mstd0.5, augmix-m3-w3, ...")
    aug_splits: int = setting(
        0,
        "show each sample this many times in a batch, first without aa and color_jitter",
        low=0,
        needs=rules.an_augmentation,
    )
    reprob: float = setting(0.0, "probability of random erasing", low=0, high=1)
    remode: Literal["const", "rand", "pixel"] = setting("pixel", "what random erasing fills with", needs=on("reprob"))
    recount: int = setting(1, "rectangles of random erasing", low=1, needs=on("reprob"))
    aug_repeats: int = setting(
        0,
        "times each image is in a batch, augmented each time, as in timm; 0 and 1 are the same",
        low=0,
        needs=rules.timms_crop,
    )
    # Model
    model: str = setting("preactresnet8", "a model of timm's registry")
    model_kwargs: dict[str, Any] = setting({}, "more arguments of the model")
    pretrained: bool = setting(False, "start from timm's pretrained weights")
    pretrained_path: str | None = setting(
        None, "local file to read the pretrained weights from; a run records its name only", needs=on("pretrained")
    )
    head_init: Literal["timm", "zero"] = setting(
        "timm", "how the classifier starts: as timm initialises it, or at zero"
    )
    freeze: list[str] | None = setting(
        None, "modules whose parameters are not trained, as timm.utils.freeze takes them"
    )
    drop: float = setting(0.0, "dropout before the classifier", low=0, high=1)
    drop_path: float | None = setting(None, "stochastic depth, for models that have it", low=0, high=1)
    grad_checkpointing: bool = setting(False, "recompute activations in the backward pass")
    channels_last: bool = setting(False, "memory format of model and images")
    torchcompile: str | None = setting(None, "compile the model with this backend, such as inductor")
    # Method
    mix: str | list[str] = setting("none", "the method, or several, one of which is chosen per batch")
    mix_weights: list[float] | None = setting(None, "how often each of several methods has its turn", above=0)
    mix_settings: dict[str, Any] = field(default_factory=dict)
    mixup_off_epoch: int = setting(
        0, "no batch is altered from this epoch on, as in timm; 0 for never", low=0, needs=rules.a_mix
    )
    mixup_warmup_epochs: int = setting(
        0, "the settings under mixup_warmup rise linearly from 0 in this many epochs", low=0, needs=rules.a_mix
    )
    mixup_warmup: list[str] = setting(
        ["prob"], "settings of the method that rise: prob, gamma, drop_prob", needs=on("mixup_warmup_epochs")
    )
    smoothing: float = setting(0.0, "label smoothing", low=0, below=1)
    loss: Literal["cross_entropy", "bce", "bce_softmax", "jsd"] = setting(
        "cross_entropy", "loss on soft targets; bce_softmax is the authors', jsd AugMix's, which compares aug_splits"
    )
    bce_sum: bool = setting(False, "sum bce over the classes instead of the mean, as in timm", needs=rules.loss("bce"))
    bce_target_thresh: float | None = setting(
        None, "bce: targets above this are 1, others 0, as in timm", low=0, below=1, needs=rules.loss("bce")
    )
    class_weight: Literal["balanced"] | list[float] | None = setting(
        None, "weight of each class in the loss: a list, or balanced for the inverse of its training images", low=0
    )
    # Optimizer
    batch_size: int = setting(100, "the whole batch of one update, over all processes and accumulation steps", low=1)
    drop_last: bool = setting(
        True, "leave out the samples at the end of an epoch that do not fill a batch; the authors train on them, too"
    )
    grad_accum_steps: int = setting(1, "micro-batches per update and process", low=1)
    validation_batch_size: int = setting(500, "batch per process in evaluation", low=1, fixed=False)
    opt: str = setting("sgd", "an optimizer of timm; sgd is with Nesterov momentum, as in timm")
    lr: float = setting(0.1, "learning rate of the whole batch, not scaled by anything", above=0)
    momentum: float = setting(0.9, "momentum", low=0, high=1, needs=rules.optimizer_with("momentum"))
    weight_decay: float = setting(1e-4, "weight decay", low=0)
    filter_bias_and_bn: bool = setting(
        True, "no weight decay for biases and norms, as in timm", needs=on("weight_decay")
    )
    layer_decay: float | None = setting(
        None,
        "factor of the rate from each layer group to the one below it, as in timm",
        above=0,
        high=1,
        needs=rules.schedule(*rules.SCHEDULED),
    )
    opt_eps: float | None = setting(None, "epsilon of the optimizer", above=0, needs=rules.optimizer_with("eps"))
    opt_betas: list[float] | None = setting(
        None, "betas of the optimizer", low=0, high=1, needs=rules.optimizer_with("betas")
    )
    clip_grad: float | None = setting(None, "clip gradients at this value", above=0)
    clip_mode: Literal["norm", "value", "agc"] = setting("norm", "what is clipped", needs=on("clip_grad"))
    # Learning rate schedule
    epochs: int = setting(10, "number of epochs, without cooldown", low=1)
    sched: Literal["cosine", "tanh", "step", "multistep", "poly", "none"] = setting("cosine", "schedule")
    sched_on_updates: bool = setting(
        False, "step the schedule with every update instead of every epoch", needs=rules.schedule(*rules.SCHEDULED)
    )
    decay_milestones: list[int] = setting(
        [30, 60], "multistep: the rate drops after these epochs", low=1, needs=rules.schedule("multistep")
    )
    decay_epochs: float = setting(
        30.0, "step: epochs between two drops of the rate", above=0, needs=rules.schedule("step")
    )
    decay_rate: float = setting(
        0.1, "factor of each drop; poly: the power", above=0, needs=rules.schedule("step", "multistep", "poly")
    )
    min_lr: float = setting(0.0, "lowest rate", low=0, needs=rules.schedule(*rules.DECAYING))
    warmup_epochs: int = setting(0, "epochs of warmup", low=0, needs=rules.schedule(*rules.SCHEDULED))
    warmup_lr: float = setting(1e-5, "rate at the start of warmup", low=0, needs=on("warmup_epochs"))
    warmup_prefix: bool = setting(
        False, "warmup comes before the schedule instead of replacing its start", needs=on("warmup_epochs")
    )
    cooldown_epochs: int = setting(
        0, "epochs at the lowest rate after the schedule", low=0, needs=rules.schedule(*rules.DECAYING)
    )
    # EMA and mixed precision
    model_ema: bool = setting(False, "keep an exponential moving average of the weights, and evaluate it")
    model_ema_decay: float = setting(0.9998, "decay of the average", low=0, high=1, needs=on("model_ema"))
    model_ema_warmup: bool = setting(False, "let the decay grow at first", needs=on("model_ema"))
    amp: bool = setting(False, "mixed precision; off leaves it to the launch configuration")
    amp_dtype: Literal["bfloat16", "float16"] = setting("bfloat16", "dtype of mixed precision", needs=on("amp"))
    # Run
    seed: int = setting(0, "seed of everything but the splits", low=0)
    dist_bn: Literal["reduce", "broadcast"] = setting(
        "reduce", "norm statistics after each epoch: the mean over the processes, or the statistics of the first"
    )
    val_interval: int = setting(1, "epochs between two validations; the last is always validated", low=1)
    eval_metric: Literal["top1", "loss"] = setting("top1", "what makes an epoch the best", needs=rules.a_chosen_epoch)
    best_tie: Literal["last", "first"] = setting(
        "last", "which of several best epochs is tested; the authors test the first", needs=rules.a_chosen_epoch
    )
    best_on_test: bool = setting(
        False,
        "test the epoch that is best on the test set, as CutMix reports ImageNet, not the last",
        needs=rules.nothing_held_out,
    )
    test_median: int | None = setting(
        None,
        "also report the median over the last N epochs, as OpenMixup does: all are tested, none is chosen",
        low=1,
        needs=rules.no_chosen_epoch,
    )
    checkpoint_steps: int = setting(
        0, "updates between two checkpoints, besides one per epoch; 0 for epochs only", low=0, fixed=False
    )
    checkpoint_hist: int = setting(2, "number of checkpoints to keep", low=1, fixed=False)
    log_interval: int = setting(50, "updates between two refreshes of the progress bar", low=1, fixed=False)

    def __post_init__(self) -> None:
        errors: list[UserError] = []
        given = self.mix
        with collecting(errors):
            super().__post_init__()
        with collecting(errors):
            self._resolve_method(self.mix_settings if self.mix == given else {})  # if not, the check has reported it
        raise_together(errors)

    def _resolve_method(self, settings: Mapping[str, Any]) -> None:
        """Write out defaults: a resolved recipe contains all that was used, even if defaults change later."""
        mix = self.mix[0] if isinstance(self.mix, list) and len(self.mix) == 1 else self.mix
        if unknown_outside(mix):
            return  # reading a recipe imports nothing; its settings stay as they are
        method = read_methods(mix, settings, weights=self.mix_weights, prefix=MIX_PREFIX)
        if mix != "none":  # with it a schedule has no effect, which is reported as such
            self.schedule.check(method, prefix="mixup_")
        object.__setattr__(self, "mix", mix)
        if isinstance(method, OneOf):
            each = {name: dict(sorted(one.settings().items())) for name, one in zip(mix, method.methods)}
            object.__setattr__(self, "mix_weights", list(method.weights or ()))
            object.__setattr__(self, "mix_settings", each)
        else:
            object.__setattr__(self, "mix_settings", dict(sorted(method.settings().items())))

    @property
    def method(self) -> Method:
        """The method with its settings."""
        weights = {} if self.mix_weights is None else {"weights": self.mix_weights}
        return make_methods(self.mix, **weights, **self.mix_settings)

    @property
    def schedule(self) -> Schedule:
        """What changes in the method from epoch to epoch."""
        return Schedule(
            off_epoch=self.mixup_off_epoch, warmup_epochs=self.mixup_warmup_epochs, warmup=tuple(self.mixup_warmup)
        )

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        """The settings of each method by its name: one, or several, one of which is chosen per batch."""
        if isinstance(self.mix, str):
            return {self.mix: self.mix_settings}
        return {name: self.mix_settings.get(name, {}) for name in self.mix}

    @property
    def mix_name(self) -> str:
        """The method as tables and titles show it; several are joined by ``+``."""
        return "+".join(self.methods)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """Make a recipe from flat keys; raise UserError with everything that is wrong with them."""
        known, keys, own = settings_of(cls), list_keys(), unknown_outside(values.get("mix"))
        taken: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        errors: list[UserError] = []
        for name, value in values.items():
            if name in known:
                taken[name] = known[name].from_text(value) if known[name].takes_fractions else value
            elif name == "mix_settings" and isinstance(value, Mapping):
                settings |= value
            elif name == "mix_settings":
                errors.append(UserError(f"{name} must be a mapping of methods to their settings, got {brief(value)}"))
            elif name.startswith(MIX_PREFIX) and (own or name in keys):
                settings[name.removeprefix(MIX_PREFIX)] = value
            else:
                errors.append(UserError(f"unknown key {brief(name)}{nearest(name, keys)}"))
        with collecting(errors):
            recipe = cls(**taken, mix_settings=settings)
        raise_together(errors)
        return recipe

    def to_dict(self) -> dict[str, Any]:
        """Return the flat keys, with the settings of the method as ``mix_*``, of several under ``mix_settings``."""
        flat: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(self.mix, str) and f.name == "mix_settings":
                flat.update({f"{MIX_PREFIX}{name}": setting for name, setting in value.items()})
            elif isinstance(self.mix, list) or f.name != "mix_weights":
                flat[f.name] = value
        return flat

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, default_flow_style=None, width=100)

    @property
    def unresolved(self) -> list[str]:
        """The keys that are still ``auto``: what they stand for follows from the data and the model."""
        return [name for name, known in settings_of(Recipe).items() if known.auto and getattr(self, name) == AUTO]

    def differences(self, other: "Recipe") -> dict[str, tuple[Any, Any]]:
        """Return both values of each key that affects the result and in which two recipes differ.

        ``auto`` agrees with any value. If the methods differ, their settings are not compared.
        """
        mine, theirs = _comparable(self), _comparable(other)
        compared = {*settings_of(Recipe)} if self.mix != other.mix else {*mine, *theirs}
        compared -= {*KEYS_FREE_TO_CHANGE_ON_RESUME, *self.unresolved, *other.unresolved}
        values = {name: (mine.get(name), theirs.get(name)) for name in mine | theirs if name in compared}
        return {name: (one, another) for name, (one, another) in values.items() if one != another}

    def contradictions(self) -> list[str]:
        return list(rules.contradictions(self))


def _comparable(recipe: Recipe) -> dict[str, Any]:
    """Return the flat keys: weights by the name of their file, as runs record them, each setting of several methods."""
    flat = recipe.to_dict()
    path = flat["pretrained_path"]
    several = {
        f"mix_settings {method}.{name}": value
        for method, settings in flat.pop("mix_settings", {}).items()
        for name, value in settings.items()
    }
    return flat | several | {"pretrained_path": path if path is None else Path(path).name}


KEYS_FREE_TO_CHANGE_ON_RESUME = frozenset(name for name, known in settings_of(Recipe).items() if not known.fixed)


def list_mix_settings() -> list[str]:
    """Return the names of the settings of all methods, sorted."""
    return sorted({name for method in list_methods() for name in method_settings(method)})


def list_keys() -> list[str]:
    """Return all keys, including the settings of the methods."""
    return [*settings_of(Recipe), "mix_settings", *(f"{MIX_PREFIX}{name}" for name in list_mix_settings())]
