"""Which samples are used for what: stratified, seeded, pure functions of the labels."""

import numpy as np


def hold_out(labels: np.ndarray, fraction: float, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split samples into those to train on and a stratified share that is held out.

    Args:
        labels: int (N,).
        fraction: share to hold out, in [0, 1).
        seed: of the choice.

    Returns:
        Two sorted index vectors: the rest, and ``round(fraction * N)`` samples that are spread over the classes as
        evenly as their sizes allow.
    """
    held = take_stratified(labels, round(fraction * len(labels)), seed=seed)
    rest = np.setdiff1d(np.arange(len(labels)), held)
    return rest, held


def take_stratified(labels: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Return the sorted indices of ``count`` samples with the classes in their proportions, or of all."""
    if count >= len(labels):
        return np.arange(len(labels))
    classes, sizes = np.unique(labels, return_counts=True)
    exact = sizes * (count / len(labels))
    quota = np.floor(exact).astype(int)
    # What rounding down leaves goes to the largest remainders, in the order of the classes where they are equal.
    for position in np.argsort(-(exact - quota), kind="stable")[: count - quota.sum()]:
        quota[position] += 1
    return _pick(labels, dict(zip(classes.tolist(), quota.tolist())), seed=seed)


def take_per_class(labels: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Return the sorted indices of ``count`` samples of each class.

    Raises:
        ValueError: a class has fewer.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    if sizes.min() < count:
        raise ValueError(f"{count} images of each class are wanted, class {classes[sizes.argmin()]} has {sizes.min()}")
    return _pick(labels, dict.fromkeys(classes.tolist(), count), seed=seed)


def _pick(labels: np.ndarray, quota: dict[int, int], *, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    picked = [rng.permutation(np.flatnonzero(labels == label))[:count] for label, count in quota.items()]
    return np.sort(np.concatenate(picked))
