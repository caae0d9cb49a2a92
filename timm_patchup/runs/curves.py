"""The figure of a run: loss and validation error per epoch. Training plots it, and an export plots it again."""

from collections.abc import Sequence
from pathlib import Path

from ..system.files import replacing
from .folder import EpochRow


def plot_curves(rows: Sequence[EpochRow], path: Path, *, title: str, best_epoch: int | None, val_name: str) -> None:
    """Plot the summary of a run to a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    losses, errors = figure.subplots(1, 2)
    trained = [row for row in rows if row.get("train_nll") is not None]
    if trained:
        at = [row["epoch"] for row in trained]
        dot = "." if len(trained) < 2 else None
        losses.plot(at, [row["train_nll"] for row in trained], label="train (NLL, mixed)", color="C0", marker=dot)
        wrong = [100.0 - (row["train_top1"] or 0.0) for row in trained]
        errors.plot(at, wrong, label="train error (mixed: of the larger share)", color="C0", marker=dot)
    else:  # a run of an earlier release
        objective = [row["train_loss"] for row in rows]
        losses.plot([row["epoch"] for row in rows], objective, label="train (objective)", color="C0")
    measured = [row for row in rows if row["val_loss"] is not None]
    epochs = [row["epoch"] for row in measured]
    marker = "." if len(measured) < 2 else None
    losses.plot(epochs, [row["val_loss"] for row in measured], label=f"{val_name} (NLL)", color="C1", marker=marker)
    errors.plot(epochs, [row["val_error"] for row in measured], label=f"{val_name} error", color="C1", marker=marker)
    if best_epoch is not None:
        errors.axvline(best_epoch, color="0.6", linestyle=":", label=f"best epoch, {best_epoch}")
    rate = errors.twinx()
    rate.plot([row["epoch"] for row in rows], [row["lr"] for row in rows], color="0.75", linewidth=1)
    rate.set_ylabel("learning rate", color="0.5")
    rate.set_ylim(bottom=0)
    errors.set_zorder(rate.get_zorder() + 1)
    errors.patch.set_visible(False)
    for axes, label in ((losses, "loss"), (errors, "error, %")):
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper right")
    figure.suptitle(title, parse_math=False)
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format="png")
