"""Which samples belong to which split: seeded, stratified, pure functions of the labels.

Which images are held out, and which are used of a limited number, is decided here and nowhere else.
"""

import numpy as np


def hold_out(labels: np.ndarray, fraction: float, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split samples into a training set and a stratified held-out set.

    Args:
        labels: int (N,).
        fraction: share to hold out, in [0, 1).
        seed: seed of the selection.

    Returns:
        Two sorted index vectors: the training set, and ``round(fraction * N)`` held-out samples in which classes have
        the same proportions as in all samples, up to rounding. At least one sample of each class is left to train on;
        if classes are that small, fewer samples are held out.
    """
    held = _take(labels, round(fraction * len(labels)), leave=1, seed=seed)
    is_held = np.zeros(len(labels), dtype=bool)
    is_held[held] = True
    return np.flatnonzero(~is_held), held


def hold_out_per_class(labels: np.ndarray, count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split samples into a training set and ``count`` held-out samples per class; two sorted index vectors.

    Raises:
        ValueError: a class has no more than these.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    if sizes.min() == count:
        raise ValueError(f"{count} images per class leave none to train on of class {classes[sizes.argmin()]}")
    held = take_per_class(labels, count, seed=seed)
    return np.setdiff1d(np.arange(len(labels)), held), held


def take_stratified(labels: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Return the sorted indices of ``count`` samples with unchanged class proportions, or of all samples."""
    return np.arange(len(labels)) if count >= len(labels) else _take(labels, count, leave=0, seed=seed)


def _take(labels: np.ndarray, count: int, *, leave: int, seed: int) -> np.ndarray:
    """Return ``count`` stratified samples, or fewer if ``leave`` samples of each class would not be left."""
    classes, sizes = np.unique(labels, return_counts=True)
    exact = sizes * (count / len(labels))
    quota = np.minimum(np.floor(exact).astype(int), sizes - leave)
    # The samples lost to rounding down go to the largest remainders; ties go to the lower class.
    by_remainder = np.argsort(-(exact - quota), kind="stable")
    quota[by_remainder[(quota < sizes - leave)[by_remainder]][: count - quota.sum()]] += 1
    return _pick(labels, dict(zip(classes.tolist(), quota.tolist())), seed=seed)


def take_per_class(labels: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Return the sorted indices of ``count`` samples per class.

    Raises:
        ValueError: a class has fewer.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    if sizes.min() < count:
        raise ValueError(f"cannot take {count} images per class: class {classes[sizes.argmin()]} has {sizes.min()}")
    return _pick(labels, dict.fromkeys(classes.tolist(), count), seed=seed)


def take_at_most(labels: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Return the sorted indices of ``count`` samples per class, or of all samples of a class that has fewer."""
    return _pick(labels, dict.fromkeys(np.unique(labels).tolist(), count), seed=seed)


def _pick(labels: np.ndarray, quota: dict[int, int], *, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    # One sort instead of one pass per class, which takes minutes for millions of samples of thousands of classes.
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels, list(quota), side="right", sorter=order)
    starts = np.searchsorted(labels, list(quota), side="left", sorter=order)
    picked = [rng.permutation(order[a:b])[:count] for a, b, count in zip(starts, ends, quota.values())]
    return np.sort(np.concatenate(picked))
