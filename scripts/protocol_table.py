"""The rows of the table in recipes/protocols/README.md: the paper, the authors' code, and ours, read from the recipes.

``update_tables.py`` writes it. A row is a point, what the paper states, what the authors' code does, and a function of
the recipes for what is done here.
"""

from collections.abc import Callable
from typing import Any

from timm_patchup.core.functional import expected_coverage, seed_rate
from timm_patchup.recipe import load_recipe


def of(recipe: str, key: str) -> Any:
    """Return a key of a recipe, as a table shows it."""
    value = load_recipe(recipe).to_dict()[key]
    return " ".join(map(str, value)) if isinstance(value, list) else value


def each(key: str, **recipes: str) -> str:
    """Return a key of several recipes, by short names."""
    return ", ".join(f"{name.replace('_', ' ')} {of(recipe, key)}" for name, recipe in recipes.items())


def dropped(size: int) -> str:
    return f"{expected_coverage(seed_rate(0.1, 7, size, size), 7, size, size):.0%} of {size} x {size}"


HARD, SOFT = "cifar10_preactresnet18_hard_patchup", "cifar10_preactresnet18_soft_patchup"
TINY, DROP = "tiny_imagenet_wrn28_10", "cifar100_wrn28_10_dropblock"
PUZZLE = "tiny_imagenet_wrn28_10_puzzle_mix"
WRN = "cifar100_wrn28_10_hard_patchup"
SGD = "SGD, Nesterov 0.9, batches of 100, weight decay 1e-4, lr 0.1"
ROWS: list[tuple[str, str, str, str | Callable[[], str]]] = [
    ("optimizer", SGD, "the same", lambda: f"lr {of(HARD, 'lr')}, batch {of(HARD, 'batch_size')}, as the paper"),
    (
        "schedules",
        "2000 epochs, x 0.1 after 500, 1000, 1500; WRN 400, after 200, 300",
        "the same",
        lambda: each("decay_milestones", PreActResNet=HARD, WRN=WRN),
    ),
    (
        "loss",
        "cross-entropy is implied",
        "BCE on softmax",
        lambda: f"{of(HARD, 'loss')}; `--loss bce_softmax` for theirs",
    ),
    (
        "hard PatchUp: prob, gamma",
        "0.7, 0.5; ImageNet 0.6, 0.5",
        "the same",
        lambda: f"{of(HARD, 'mix_prob')}, {of(HARD, 'mix_gamma')}; ImageNet {of('imagenet_hard_patchup', 'mix_prob')}",
    ),
    (
        "soft PatchUp: prob, gamma, alpha",
        "1.0, 0.75, 2; ImageNet gamma 0.6",
        "alpha fixed at 2",
        lambda: (
            f"{of(SOFT, 'mix_prob')}, {of(SOFT, 'mix_gamma')}, {of(SOFT, 'mix_alpha')}; ImageNet gamma "
            f"{of('imagenet_soft_patchup', 'mix_gamma')}"
        ),
    ),
    ("mask of PatchUp", "not stated", "one for the batch", lambda: str(of(HARD, "mix_mask"))),
    (
        "sites",
        "WRN: input, stem, stage1, stage2; others not stated",
        "input, stem, stage1",
        lambda: each(
            "mix_sites",
            PreActResNet=HARD,
            WRN=WRN,
            ResNet101="tiny_imagenet_resnet101_hard_patchup",
            ResNet50="imagenet_hard_patchup",
        ),
    ),
    (
        "block size",
        "7",
        "PreActResNet 7; WRN 7 7 5 3 by site",
        lambda: each("mix_block_size", PreActResNet=HARD, WRN=WRN, ResNet101="tiny_imagenet_resnet101_hard_patchup"),
    ),
    (
        "W at k = 0",
        "Mix of both targets by p_u",
        "WRN leaves W at the own target; PreActResNet as the paper",
        "as the paper",
    ),
    ("weights of L1, L2", "1, 1", "loss_alpha scales only the own half of L1", "`objective`: both, l1 or l2"),
    ("WRN-28-10", "cites Zagoruyko", "biases, stride in conv2, raw shortcut", lambda: str(of(WRN, "model"))),
    (
        "PreActResNet",
        "cites He et al.",
        "no final norm, torch's initial weights",
        lambda: str(of(HARD, "model_kwargs")),
    ),
    (
        "crop padding",
        "not stated",
        "2; Tiny-ImageNet 4",
        lambda: each(
            "crop_padding", CIFAR=HARD, SVHN="svhn_wrn28_10_none", Tiny_ImageNet="tiny_imagenet_wrn28_10_none"
        ),
    ),
    (
        "held out",
        "10% of the training images",
        "per class: 500, 50 or 733 of CIFAR-10, CIFAR-100, SVHN; SVHN trains on at most 7,325",
        lambda: f"val_fraction {of(HARD, 'val_fraction')}; keys `val_per_class`, `train_at_most`",
    ),
    ("held-out images", "not stated", "augmented", lambda: f"val_augment {of(HARD, 'val_augment')}"),
    ("split", "not stated", "another one in every run", lambda: f"split_by_seed {of(HARD, 'split_by_seed')}"),
    ("ties of the best epoch", "not stated", "the first", lambda: str(of(HARD, "best_tie"))),
    (
        "ImageNet: tested epoch",
        "not stated",
        "no code; CutMix and Puzzle Mix report the best on the validation set",
        lambda: f"the last; best_on_test {of('imagenet_none', 'best_on_test')}",
    ),
    (
        "Mixup alpha",
        "1; Tiny-ImageNet 1 or 0.2",
        "1.0",
        lambda: each("mix_alpha", CIFAR="cifar10_wrn28_10_mixup", Tiny_ImageNet="tiny_imagenet_wrn28_10_mixup"),
    ),
    (
        "Manifold Mixup alpha",
        "1.5; SVHN 1.5 or 2; Tiny-ImageNet 2 or 0.2",
        "1.5",
        lambda: each(
            "mix_alpha",
            CIFAR="cifar10_wrn28_10_manifold_mixup",
            Tiny_ImageNet="tiny_imagenet_wrn28_10_manifold_mixup",
            ImageNet="imagenet_manifold_mixup",
        ),
    ),
    (
        "CutMix probability",
        "0.4 on CIFAR-10",
        "0.4",
        lambda: each(
            "mix_prob",
            CIFAR="cifar10_wrn28_10_cutmix",
            Tiny_ImageNet="tiny_imagenet_wrn28_10_cutmix",
            ImageNet="imagenet_cutmix",
        ),
    ),
    (
        "Cutout",
        "16, 8, 20 on CIFAR-10, CIFAR-100, SVHN",
        "one square per batch",
        lambda: (
            f"per {of('cifar10_wrn28_10_cutout', 'mix_mask')}; "
            + each("mix_length", CIFAR10="cifar10_wrn28_10_cutout", CIFAR100="cifar100_wrn28_10_cutout")
        ),
    ),
    (
        "DropBlock",
        "blocks of 7, keep 0.9",
        "stem and stage1 together, masks per sample and channel",
        lambda: (
            f"at {of(DROP, 'mix_at')} of {of(DROP, 'mix_sites')}, "
            f"mask per sample and {of(DROP, 'mix_mask')}; drops {dropped(32)}, {dropped(16)}, "
            f"{dropped(8)}"
        ),
    ),
    (
        "Puzzle Mix on Tiny-ImageNet",
        "alpha 0.2",
        "no code; Puzzle Mix's own command: alpha 1.0, moves whole blocks, adds 2 / K times the clean cross-entropy (K "
        "classes) to BCE on softmax, saliency in train mode",
        lambda: (
            f"alpha {of(PUZZLE, 'mix_alpha')}, moves {of(PUZZLE, 'mix_transport_size')}s, adds "
            f"{of(PUZZLE, 'mix_clean_lam')} times the clean loss; both are the loss of the run, saliency in eval mode"
        ),
    ),
    (
        "affine tests",
        "ranges only",
        "RandomAffine of torchvision 0.4.2, nearest; its shear also squeezes rows",
        "RandomAffine of today's torchvision, nearest",
    ),
    ("FGSM's eps", "not stated", "normalised space", "studies normalised, `evaluate.py` pixels; `--eps-space`"),
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
