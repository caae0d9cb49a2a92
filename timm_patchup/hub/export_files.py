"""The files of an export: weights, config.json, recipe, results, summary, curves, report and model card.

Weights are written as safetensors only. Text is cleaned of private words, and the curves are plotted again without the
name of the run.
"""

import json
from pathlib import Path
from typing import Any

import timm
from safetensors.torch import save_file
from timm.models import model_entrypoint
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

from .. import __version__
from ..data.embedded import CLASSES
from ..errors import HubError
from ..recipe import Recipe
from ..report.confusion import plot_confusion
from ..report.curves import plot_curves
from ..report.figures import save
from ..runs.finished import FinishedRun
from ..runs.from_run import network_arguments
from ..runs.weights import WEIGHTS
from ..system.privacy import PrivateWords, without_comments
from .card import REPORT, Facts, make_card

DEFAULT_LICENSE = "apache-2.0"
REPORT_SUFFIXES = (".md", ".csv", ".json", ".txt", ".svg", ".png")


def write_files(folder: Path, run: FinishedRun, model: nn.Module, private: PrivateWords, license: str | None) -> None:
    """Write all files of an export, cleaned of private words.

    Raises:
        HubError: a file of the report cannot be read.
    """
    recipe, results = run.recipe, run.results
    save_file(_contiguous(model.state_dict()), folder / WEIGHTS, metadata={"format": "pt"})
    from_timm = recipe.pretrained and recipe.pretrained_path is None and ":" not in recipe.model
    base: Any = timm.get_pretrained_cfg(recipe.model) if from_timm else None
    licensed = license or (base.license if base is not None else None) or DEFAULT_LICENSE
    package = _package(model)
    config = _write_config(folder, run, model, private, licensed, package)
    head = "# Every setting of the training: python -m timm_patchup.training --recipe recipe.yaml\n"
    shown_recipe = Recipe.from_dict(private.clean_values(recipe.to_dict()))
    shown_results = private.clean_values(results)
    write_text(folder / "recipe.yaml", head + shown_recipe.to_yaml())
    _write_json(folder / "results.json", shown_results)
    write_text(folder / "summary.csv", private.clean(run.summary))
    _plot(folder, f"{config['architecture']}, {recipe.mix_name}", run, private)
    report = _copy_report(run.path / REPORT, folder / REPORT, private)
    page = folder / REPORT / "report.md"
    # Made from cleaned values and not cleaned as a whole: on a machine called torch, its code would import NAME.
    facts = Facts(
        recipe=shown_recipe,
        results=shown_results,
        config=config,
        package=package,
        report=report,
        evaluation=page.read_text(encoding="utf-8") if page.is_file() else "",
        base_model=_base_model(base),
    )
    write_text(folder / "README.md", make_card(facts))


def _package(model: nn.Module) -> str | None:
    """Return the package that registers the network with timm, None for timm's own networks."""
    cfg: Any = model.pretrained_cfg
    package = model_entrypoint(cfg["architecture"]).__module__.partition(".")[0]
    return None if package == "timm" else package


def _contiguous(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}


def _write_config(
    folder: Path, run: FinishedRun, model: nn.Module, private: PrivateWords, licensed: str, package: str | None
) -> dict[str, Any]:
    """Write config.json as timm does, with a section ``patchup``, and return it."""
    recipe, results = run.recipe, run.results
    cfg: Any = model.pretrained_cfg
    cfg["license"] = licensed
    arguments = network_arguments(recipe) | ({"in_chans": recipe.input_size[0]} if recipe.input_size[0] != 3 else {})
    section = {
        "method": recipe.mix,
        **({"mix_weights": recipe.mix_weights} if recipe.mix_weights else {}),
        "settings": recipe.mix_settings,
        "weights": results["weights"],
        "version": __version__,
    }
    if package:
        section["needs"] = f"import {package}"
    names = results.get("class_names") or (CLASSES if recipe.dataset == "fashion_mini" else None)
    extra: dict[str, Any] = {"patchup": section}
    if names:
        extra["label_names"] = list(names)
    path: Any = folder / "config.json"  # timm annotates a str and needs a Path
    save_config_for_hf(model, path, model_config=extra, model_args=arguments)
    config = private.clean_values(json.loads(path.read_text(encoding="utf-8")))
    _write_json(path, config)
    return config


def _plot(folder: Path, title: str, run: FinishedRun, private: PrivateWords) -> None:
    chosen_on = run.results["chosen_on"]
    save(
        folder / "curves.png",
        plot_curves,
        run.rows,
        title=title,
        best_epoch=None if chosen_on.startswith("nothing") else run.results["best_epoch"],
        val_name="validation" if chosen_on == "validation" else "test",
    )
    if run.results.get("confusion"):
        names = private.clean_values(run.results.get("class_names"))
        save(folder / "confusion.png", plot_confusion, run.results["confusion"], names, title=title)


def _copy_report(source: Path, target: Path, private: PrivateWords) -> list[str]:
    """Copy tables and figures, but nothing through links; return their names."""
    names = []
    for path in sorted(source.rglob("*")) if source.is_dir() and not source.is_symlink() else ():
        relative = path.relative_to(source)
        hidden = any(part.startswith(".") for part in relative.parts)
        linked = any((source / parent).is_symlink() for parent in (relative, *relative.parents))
        if hidden or linked or not path.is_file() or path.suffix not in REPORT_SUFFIXES:
            continue
        copy = target / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            if path.suffix == ".png":
                copy.write_bytes(without_comments(path.read_bytes()))
            elif path.suffix == ".json":
                _write_json(copy, private.clean_values(json.loads(path.read_text(encoding="utf-8"))))
            else:
                write_text(copy, private.clean(path.read_text(encoding="utf-8")))
        except ValueError as error:  # UnicodeDecodeError and JSONDecodeError too
            way = "repair or remove it, then export again"
            raise HubError(f"cannot read {path}: {error}; {way}", retry=True) from error
        names.append(f"{REPORT}/{relative.as_posix()}")
    return names


def _base_model(cfg: Any) -> str | None:
    """Return the Hub name of the pretrained weights."""
    if cfg is None or not cfg.hf_hub_id:
        return None
    return f"{cfg.hf_hub_id}{cfg.architecture}.{cfg.tag}" if cfg.hf_hub_id.endswith("/") else cfg.hf_hub_id


def _write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
