"""The rows of the table in recipes/protocols/README.md: the paper, the authors' code, and ours, read from the recipes.

``update_tables.py`` writes it. A row is a point, what the paper states, what the authors' code does, and a function of
the recipes for what is done here. ``SHOWN`` has all values that were read, so that a test can see what is left out.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from timm_patchup.core.functional import expected_coverage, rectangle_mask, seed_rate
from timm_patchup.core.settings import settings_of
from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.study import load_study

# The benchmarks of the paper's tables, with what each is known as.
STUDIES = ("cifar", "svhn", "tiny_imagenet", "imagenet")
BENCHMARKS = list(dict.fromkeys(one.benchmark for study in STUDIES for one in load_study(study).conditions))
DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "tiny_imagenet": "Tiny-ImageNet",
    "imagenet": "ImageNet",
}
NETS = {
    "preactresnet18": "PreActResNet18",
    "preactresnet34": "PreActResNet34",
    "wrn28_10": "WRN",
    "resnet101": "ResNet101",
    "resnet152": "ResNet152",
    "imagenet": "ResNet50",
}
SHOWN: set[tuple[str, str, str]] = set()  # method, key and value, as ``text`` gives it


def text(value: Any) -> str:
    """Return a value as the table shows it."""
    if isinstance(value, dict):
        return " ".join(f"{key} {text(one)}" for key, one in value.items()) or "-"
    if isinstance(value, list):
        return " ".join(map(text, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


@cache
def recipe(benchmark: str, method: str) -> dict[str, Any]:
    return load_recipe(f"{benchmark}_{method}").to_dict()


def ours(key: str, method: str = "none") -> str:
    """Return a key of a method's recipes: one value, or those by dataset or by net, and exceptions if there are any.

    A benchmark in which the key has no effect is left out.
    """
    values = {one: text(recipe(one, method)[key]) for one in BENCHMARKS if not _is_idle(key, one, method)}
    SHOWN.update((method, key, value) for value in values.values())
    for name in (_data, _net):
        usual = _usual(values, name)
        exceptions = {one: value for one, value in values.items() if value != usual[name(one)]}
        if not exceptions:
            break
    return _grouped(usual | {f"{_net(one)} on {_data(one)}": value for one, value in exceptions.items()})


def _is_idle(key: str, benchmark: str, method: str) -> bool:
    declared = settings_of(Recipe).get(key)
    why = declared.needs(load_recipe(f"{benchmark}_{method}")) if declared and declared.needs else None
    return why is not None


def _usual(values: dict[str, str], name: Callable[[str], str]) -> dict[str, str]:
    """Return the most common value under each name."""
    found: dict[str, list[str]] = {}
    for one, value in values.items():
        found.setdefault(name(one), []).append(value)
    return {own: Counter(several).most_common(1)[0][0] for own, several in found.items()}


def _grouped(values: dict[str, str]) -> str:
    """Return values with the names that have each; if most have the same, that one first and the others in brackets."""
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(name)
    most = max(names, key=lambda value: len(names[value]))
    usual = most if 2 * len(names[most]) > len(values) else None
    others = "; ".join(f"{', '.join(own)}: {value}" for value, own in names.items() if value != usual)
    return others if usual is None else f"{usual} ({others})" if others else usual


def _data(benchmark: str) -> str:
    return next(name for part, name in reversed(DATA.items()) if benchmark.startswith(part))


def _net(benchmark: str) -> str:
    return next(name for part, name in NETS.items() if benchmark.endswith(part))


def mean_area(size: int, *, even: bool = False) -> str:
    """Return the mean area of CutMix's rectangle with lam ~ Beta(1, 1), over all sides and centres.

    Args:
        size: side of the image.
        even: round sides down to even ones, as CutMix's own code does.
    """
    total = 0.0
    for length in range(size + 1):
        likely = (min(length + 1, size) ** 2 - length**2) / size**2  # of sqrt(1 - lam) * size in [length, length + 1)
        lam = 1.0 - ((length - length % 2 * even + 0.5) / size) ** 2 if length < size else 0.0
        masks = [rectangle_mask(size, size, lam=lam, center=(middle, middle)) for middle in range(size)]
        span = sum(mask.any(dim=2).sum().item() for mask in masks) / size**2
        total += likely * span**2
    return f"{total:.1%}"


def dropped(size: int) -> str:
    return f"{expected_coverage(seed_rate(0.1, 7, size, size), 7, size, size):.0%} of {size} x {size}"


HARD, SOFT, MANIFOLD, FEATURE = "hard_patchup", "soft_patchup", "manifold_mixup", "feature_cutmix"
DROP, PUZZLE = "dropblock", "puzzle_mix"
PUZZLE_SETTINGS = ("prob", "n_labels", "eta", "beta", "gamma", "cell", "t_eps", "block_num", "objective")


def _same(key: str) -> str:
    """Return "the same" if soft and hard PatchUp have the same value of a key, and soft PatchUp's value if not."""
    return "the same" if ours(key, SOFT) == ours(key, HARD) else ours(key, SOFT)


ROWS: list[tuple[str, str, str, str | Callable[[], str]]] = [
    (
        "optimizer",
        "SGD, Nesterov momentum 0.9, weight decay 1e-4",
        "the same",
        lambda: (
            f"{ours('opt')}, momentum {ours('momentum')} (timm's is Nesterov's), weight decay {ours('weight_decay')}, "
            f"filter_bias_and_bn {ours('filter_bias_and_bn')}"
        ),
    ),
    ("learning rate", "0.1", "0.1", lambda: ours("lr")),
    ("batch", "100; ImageNet as CutMix: 256", "100", lambda: ours("batch_size")),
    (
        "last partial batch of an epoch",
        "not stated",
        "trained on; so do CutMix and Puzzle Mix on ImageNet",
        lambda: f"drop_last {ours('drop_last')}: of SVHN, 31 of 65,931 training images are left out per epoch",
    ),
    (
        "epochs",
        "PreActResNet 2000, WRN 400, ImageNet 300; ResNet101 and 152 not stated",
        "PreActResNet 2000, WRN 400",
        lambda: ours("epochs"),
    ),
    (
        "schedule",
        "x 0.1 after 500, 1000, 1500; WRN after 200, 300; ImageNet as CutMix: every 75",
        "the same",
        lambda: (
            f"x {ours('decay_rate')}, {ours('sched')}: after {ours('decay_milestones')}; ImageNet every "
            f"{ours('decay_epochs')}"
        ),
    ),
    (
        "loss",
        "cross-entropy is implied",
        "BCE on softmax",
        lambda: f"{ours('loss')}, smoothing {ours('smoothing')}; `--loss bce_softmax` for theirs",
    ),
    (
        "hard PatchUp",
        "prob 0.7, gamma 0.5; ImageNet prob 0.6",
        "the same; no ImageNet",
        lambda: f"prob {ours('mix_prob', HARD)}, gamma {ours('mix_gamma', HARD)}",
    ),
    (
        "soft PatchUp",
        "prob 1.0, gamma 0.75, alpha 2; ImageNet gamma 0.6",
        "alpha fixed at 2; gamma 0.25 in the examples of affine tests and FGSM",
        lambda: (
            f"prob {ours('mix_prob', SOFT)}, gamma {ours('mix_gamma', SOFT)}, alpha {ours('mix_alpha', SOFT)}, not at "
            f"the input, one lam per {ours('mix_lam', SOFT)}"
        ),
    ),
    (
        "mask of PatchUp",
        "a rectangle at the input; per batch or per sample is not stated",
        "one for the batch",
        lambda: (
            f"per {ours('mix_mask', HARD)} (soft: {_same('mix_mask')}); at the input {ours('mix_input_mask', HARD)} "
            f"(soft: {_same('mix_input_mask')}) of area Beta(1, 1), whatever alpha is"
        ),
    ),
    (
        "rectangles of PatchUp at the input, of CutMix and of Feature CutMix",
        "CutMix's",
        f"CutMix's: even sides, mean area {mean_area(32, even=True)} of 32 x 32",
        f"odd sides, too, as timm's: mean area {mean_area(32)} of 32 x 32; no key",
    ),
    (
        "p_u",
        "the unchanged share, in the text; line 11 of Algorithm 1 calls it the changed one",
        "the unchanged share",
        "the unchanged share, measured on the mask",
    ),
    (
        "rate of blocks",
        "gamma_adj",
        "gamma_adj, cached at the first call",
        lambda: f"coverage {ours('mix_coverage', HARD)} (soft: {_same('mix_coverage')}), computed per map",
    ),
    (
        "sites of PatchUp",
        "WRN: input, stem, stage1, stage2; others not stated",
        "input, stem, stage1",
        lambda: f"{ours('mix_sites', HARD)}; soft: {_same('mix_sites')}",
    ),
    (
        "block size",
        "7",
        "PreActResNet 7; WRN 7 at stem and stage1, 5 at stage2, 3 at stage3",
        lambda: (
            f"{ours('mix_block_size', HARD)}; soft: {_same('mix_block_size')}. 7 is the paper's, 5 at stage2 of WRN "
            "the authors', 5 at stage1 of ResNet101 and 152 ours: their 5 for maps of 16 x 16"
        ),
    ),
    (
        "W at k = 0",
        "Mix of both targets by p_u",
        "WRN leaves W at the own target; PreActResNet as the paper",
        "as the paper; `--mix-objective authors` for their WRN",
    ),
    (
        "weights of L1, L2",
        "1, 1",
        "loss_alpha scales only the own half of L1",
        lambda: f"objective {ours('mix_objective', HARD)} (soft: {_same('mix_objective')}): 1, 1",
    ),
    (
        "nets",
        "WRN cites Zagoruyko, PreActResNet He et al.",
        "WRN: biases, stride in conv2, raw shortcut; PreActResNet: no final norm, torch's initial weights",
        lambda: f"{ours('model')}. Arguments: {ours('model_kwargs')}",
    ),
    (
        "crop padding",
        "not stated",
        "2; Tiny-ImageNet 4",
        lambda: ours("crop_padding"),
    ),
    ("flip", "not stated", "0.5, not on SVHN", lambda: ours("hflip")),
    (
        "normalisation",
        "not stated",
        "CIFAR's; 0.5 and 0.5 on SVHN and Tiny-ImageNet",
        lambda: f"mean {ours('mean')}. std {ours('std')}",
    ),
    (
        "images of ImageNet",
        "as CutMix: random area, jitter 0.4 (its code cuts no colours off), lighting 0.1, centre crop 224 of 256",
        "no code",
        lambda: (
            f"areas {ours('scale')}, ratios {ours('ratio')}, jitter {ours('color_jitter')}, cut to [0, 1] after each "
            f"step, lighting {ours('lighting')}, centre crop {ours('crop_pct')}"
        ),
    ),
    (
        "held out",
        "10% of the training images",
        "per class: 500, 50 or 733 of CIFAR-10, CIFAR-100, SVHN; SVHN trains on at most 7,325; Tiny-ImageNet: none",
        lambda: f"val_fraction {ours('val_fraction')}; keys `val_per_class`, `train_at_most`",
    ),
    ("held-out images", "not stated", "augmented", lambda: f"val_augment {ours('val_augment')}"),
    ("split", "not stated", "another one in every run", lambda: f"split_by_seed {ours('split_by_seed')}"),
    (
        "tested epoch",
        "the best on held-out images",
        "the first of several best; Tiny-ImageNet: not known, the script stops at its first validation (under "
        "`--protocol authors` the last)",
        lambda: f"the best on held-out images, the {ours('best_tie')} of several",
    ),
    (
        "ImageNet: tested epoch",
        "not stated",
        "no code; CutMix and Puzzle Mix report the best on the validation set, the last of several",
        lambda: f"the last; best_on_test {ours('best_on_test')}",
    ),
    (
        "Mixup",
        "alpha 1; Tiny-ImageNet 1 or 0.2",
        "alpha 1.0",
        lambda: (
            f"prob {ours('mix_prob', 'mixup')}, alpha {ours('mix_alpha', 'mixup')}, one lam per "
            f"{ours('mix_lam', 'mixup')}"
        ),
    ),
    (
        "Manifold Mixup",
        "alpha 1.5; SVHN 1.5 or 2; Tiny-ImageNet 2 or 0.2; ImageNet quoted from CutMix's paper, which tried 0.5 and "
        "1.0 and chose 1.0. WRN at input, stem, stage1, stage2",
        "alpha 1.5 at input, stem, stage1",
        lambda: (
            f"prob {ours('mix_prob', MANIFOLD)}, alpha {ours('mix_alpha', MANIFOLD)}, one lam per "
            f"{ours('mix_lam', MANIFOLD)}; at {ours('mix_sites', MANIFOLD)}"
        ),
    ),
    (
        "CutMix",
        "prob 0.4, tuned on CIFAR-10; the same base hyper-parameters for all models, on Tiny-ImageNet only the alphas "
        "of Mixup, Manifold Mixup and Puzzle Mix are called sensitive; ImageNet quoted from CutMix's paper, prob 1.0",
        "prob 0.4, alpha 1.0",
        lambda: f"prob {ours('mix_prob', 'cutmix')}, alpha {ours('mix_alpha', 'cutmix')}",
    ),
    (
        "Feature CutMix",
        "ImageNet only, quoted from CutMix's paper",
        "no code",
        lambda: (
            f"prob {ours('mix_prob', FEATURE)}, alpha {ours('mix_alpha', FEATURE)}, at {ours('mix_sites', FEATURE)}, "
            "never at the input"
        ),
    ),
    (
        "Cutout",
        "16, 8, 20 on CIFAR-10, CIFAR-100, SVHN",
        "the same (its command for WRN on CIFAR-10 has 8, its note for CIFAR-100 no length); one square per batch",
        lambda: (
            f"{ours('mix_length', 'cutout')}. One square per {ours('mix_mask', 'cutout')}, prob "
            f"{ours('mix_prob', 'cutout')}"
        ),
    ),
    (
        "DropBlock",
        "blocks of 7, keep 0.9",
        "stem and stage1 together (k = 2) in all nets, masks per sample and channel",
        lambda: (
            f"blocks of {ours('mix_block_size', DROP)}, drop {ours('mix_drop_prob', DROP)}, prob "
            f"{ours('mix_prob', DROP)}; at {ours('mix_at', DROP)} of {ours('mix_sites', DROP)}; mask per sample and "
            f"{ours('mix_mask', DROP)}; drops {dropped(32)}, {dropped(16)}, {dropped(8)}"
        ),
    ),
    (
        "Puzzle Mix",
        "not stated; Tiny-ImageNet alpha 0.2",
        "no code; Puzzle Mix's own: alpha 1.0, prob 1, weights 0, 0.5, 1, eta 0.2, beta 1.2, gamma 0.5, neigh_size 4 "
        "(ImageNet: min(4, 2)), t_eps 0.8",
        lambda: (
            f"alpha {ours('mix_alpha', PUZZLE)}, "
            + ", ".join(f"{key} {ours(f'mix_{key}', PUZZLE)}" for key in PUZZLE_SETTINGS)
        ),
    ),
    (
        "Puzzle Mix: what moves; clean loss",
        "not stated",
        "no code; Puzzle Mix's own on Tiny-ImageNet: whole blocks; adds 2 / K times the clean cross-entropy, for K "
        "classes, to BCE on softmax, saliency in train mode; on ImageNet: whole blocks (no t_size), no clean loss",
        lambda: (
            f"transport {ours('mix_transport', PUZZLE)}, of a {ours('mix_transport_size', PUZZLE)}; clean_lam "
            f"{ours('mix_clean_lam', PUZZLE)}: both terms are the loss of the run, saliency in eval mode"
        ),
    ),
    (
        "runs",
        "five; ImageNet one number, figure 12 three",
        "not stated",
        lambda: ", ".join(f"{study} {load_study(study).seeds}" for study in (*STUDIES, "gamma_block")),
    ),
    (
        "affine tests",
        "ranges only",
        "RandomAffine of torchvision 0.4.2, nearest; its shear also squeezes rows, its centre is half a pixel off",
        "RandomAffine of today's torchvision, nearest; `--affine authors`",
    ),
    ("FGSM's eps", "not stated", "normalised space", "studies normalised, `evaluate.py` pixels; `--eps-space`"),
    ("FGSM's images are clipped to", "not stated", "the range of each batch", "[0, 1]"),
    (
        "common corruptions",
        "Tiny-ImageNet-C only",
        "no code",
        "the published files by `--corrupted`; without them ImageNet-C's strengths",
    ),
    ("DeepFool, DDN, CW", "foolbox, 7 steps, 8/255", "no code", "foolbox's own success at 8/255 in L2"),
    ("PGD", "foolbox, 7 steps, 8/255", "no code", "step 2/255; `--pgd-step foolbox` for 0.033 eps"),
    (
        "activations",
        "sorted magnitudes, mean over test samples",
        "signed sum over the first image of each batch",
        "mean of absolute values; `--activations authors`",
    ),
]


def protocol_rows() -> list[tuple[str, str, str, str]]:
    """Return the rows of the table."""
    return [(point, paper, authors, ours if isinstance(ours, str) else ours()) for point, paper, authors, ours in ROWS]
