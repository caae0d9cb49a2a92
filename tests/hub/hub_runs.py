"""Finished runs without training, for the tests of the Hub."""

from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.runs.folder import RunFolder
from timm_patchup.training.build import build_model

# The files of every export.
FILES = {
    "README.md",
    "config.json",
    "curves.png",
    "model.safetensors",
    "recipe.yaml",
    "results.json",
    "summary.csv",
}
REPORT = {"corruptions.csv": "name,error\nfog,12.5\n", "affine/rotation.md": "| angle | error |\n"}


def make_run(path: Path, *, results: dict[str, Any] | None = None, **keys: Any) -> RunFolder:
    """Write the folder of a finished run: the default recipe with some keys changed, and untrained weights."""
    recipe = load_recipe(overrides=keys)
    run = RunFolder(path)
    run.begin(recipe, run.name)
    save_file(_weights(recipe), path / "model.safetensors")
    row = {"lr": 0.1, "train_loss": 2.0, "val_loss": 1.5, "val_top1": 60.0, "val_top5": 90.0, "val_error": 40.0}
    run.write_summary([{"epoch": epoch, **row} for epoch in (1, 2)])
    run.write_text("curves.png", "the name of the run is painted here")
    run.write_results(
        {
            "test": {"error": 40.25, "top1": 59.75, "top5": 90.5, "loss": 1.5, "count": 2000},
            "best_epoch": 2,
            "epochs": 2,
            "chosen_on": "validation",
            "weights": "model",
            "data": "0123456789abcdef",
            "parameters": 77000,
            **(results or {}),
        }
    )
    return run


def add_report(run: RunFolder) -> None:
    for name, text in REPORT.items():
        path = run.path / "report" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _weights(recipe: Recipe) -> dict[str, Any]:
    model = build_model(recipe)
    for index, buffer in enumerate(model.buffers()):  # running statistics that differ from a new network's
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5 + index / 100)
    return {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}


def names_in(folder: Path) -> set[str]:
    """Return the names of all files in a folder, without the digests of the export."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return names - {".exported.json"}
