"""The figure of a run: loss and validation error per epoch. Training plots it, and an export plots it again."""

from collections.abc import Mapping, Sequence

from .figures import Axes, Figure, panels

Rows = Sequence[Mapping[str, float | None]]


def plot_curves(rows: Rows, *, title: str, best_epoch: int | None, val_name: str) -> Figure:
    """Plot the summary of a run."""
    figure, (losses, errors) = panels(2, width=5, height=4)
    trained = [row for row in rows if row.get("train_nll") is not None]
    measured = [row for row in rows if row["val_loss"] is not None]
    if trained:
        wrong = [100.0 - (row["train_top1"] or 0.0) for row in trained]
        _line(losses, trained, [row["train_nll"] for row in trained], "train (NLL, mixed)", "C0")
        _line(errors, trained, wrong, "train error (mixed: of the larger share)", "C0")
    else:  # a run of an earlier release
        _line(losses, rows, [row["train_loss"] for row in rows], "train (objective)", "C0")
    _line(losses, measured, [row["val_loss"] for row in measured], f"{val_name} (NLL)", "C1")
    _line(errors, measured, [row["val_error"] for row in measured], f"{val_name} error", "C1")
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
        axes.grid(True)
        axes.legend(loc="upper right")
    figure.suptitle(title)
    return figure


def _line(axes: Axes, rows: Rows, values: Sequence[float | None], label: str, color: str) -> None:
    marker = "." if len(rows) < 2 else None  # a line of one point is invisible
    axes.plot([row["epoch"] for row in rows], values, label=label, color=color, marker=marker)
