"""Export a finished run as a folder that timm loads.

Weights are exported as safetensors only. Text is cleaned of private words, the curves are plotted again without the
name of the run, and the folder is loaded with timm before it gets its final name.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from timm.models import model_entrypoint
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

from .. import __version__
from ..data.embedded import CLASSES
from ..data.source import HUB_PREFIX
from ..errors import HubError, HubFailed
from ..recipe import Recipe
from ..runs.curves import plot_curves
from ..runs.finished import FinishedRun, read_finished_run
from ..runs.folder import COLUMNS
from ..runs.from_run import build_trained, network_arguments
from ..runs.weights import WEIGHTS, weights_digest
from ..system.files import checksum
from ..system.privacy import Private, without_comments
from .card import REPORT, Facts, make_card

DEFAULT_LICENSE = "apache-2.0"
REPORT_SUFFIXES = (".md", ".csv", ".json", ".txt", ".svg", ".png")
# Never pushed: digests of the files of an export, so that nothing else is mistaken for them.
WRITTEN = ".exported.json"


def export(run_dir: str | Path, out_dir: str | Path, *, license: str | None = None) -> Path:
    """Export a finished run to a folder for the Hub.

    Args:
        run_dir: the folder of a finished run.
        out_dir: the folder to write; an earlier export is replaced unless files in it were added or edited since.
        license: license of the weights; None for that of the pretrained weights, or Apache-2.0 without any.

    Returns:
        The folder, which ``timm.create_model("local-dir:...", pretrained=True)`` loads.

    Raises:
        HubError: the run is not finished, or the folder has other files. Nothing was changed then.

    Example:
        >>> export("output/fashion_mini_hard_patchup", "output/for_the_hub")
    """
    out = Path(out_dir)
    run = read_finished_run(Path(run_dir))
    _refuse_to_replace(out)
    model = build_trained(run.recipe, run.weights, where=str(run.path))
    _refuse_stale(run, model)
    private = Private(folders=(run.path, out, Path.cwd()), known=_known_words(run))
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.parent / f".partial-{out.name}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        _write(partial, run, model, private, license)
        _refuse_private(partial, private)
        _try_with_timm(partial, model)
        _write_text(partial / WRITTEN, json.dumps(_digests(partial), indent=1) + "\n")
        if out.exists():
            shutil.rmtree(out)
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def is_export(folder: Path) -> bool:
    """Return whether a folder was written by ``export``."""
    try:
        return "patchup" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def _refuse_to_replace(out: Path) -> None:
    """Raise HubError if the folder has anything that the last export did not write."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise HubError(f"{out} is not a folder: choose another one")
    if not out.exists() or not any(out.iterdir()):
        return
    try:
        written = dict(json.loads((out / WRITTEN).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise HubError(f"{out} has files that are not from an export, which are kept: choose another folder") from None
    new = sorted(name for name, digest in _digests(out).items() if name != WRITTEN and written.get(name) != digest)
    if new:
        names = ", ".join(new[:3]) + (", ..." if len(new) > 3 else "")
        way = "push that folder as it is, or move it away and export again"
        raise HubError(f"{out} was changed since it was exported ({names}): {way}")


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a folder, by name; links are not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = "link"
        elif path.is_file():
            found[name] = checksum(path)
    return found


def _refuse_stale(run: FinishedRun, model: nn.Module) -> None:
    """Raise HubError if the report is of other weights, as after training again."""
    path = run.path / REPORT / "results.json"
    try:
        models = json.loads(path.read_text(encoding="utf-8"))["models"].values()
        evaluated = [entry["weights"] for entry in models]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no report, or not one of evaluate.py
        return
    if weights_digest(model) not in evaluated:
        again = f"python -m timm_patchup.evaluation --model {run.path} --output {path.parent} --force"
        raise HubError(f"{path.parent} is a report on other weights than those of the run: remove it, or run {again}")


def _known_words(run: FinishedRun) -> frozenset[str]:
    """Return the words in the files of a run: an optimizer or a class may have the same name as the user."""
    recipe, results, keys = run.recipe, run.results, run.recipe.to_dict()
    dataset = recipe.dataset.removeprefix(HUB_PREFIX) if recipe.dataset.startswith(HUB_PREFIX) else ""
    chosen = [value for key, value in keys.items() if isinstance(value, str) and key != "dataset"]
    names = [*keys, *COLUMNS, *results, *results["test"], *chosen, *(results.get("class_names") or ())]
    plain = [*dataset.split("/"), *(name for name in names if "/" not in name and "\\" not in name)]
    return frozenset(plain) | frozenset(word for name in plain for word in re.split(r"[^A-Za-z0-9]+", name))


def _write(folder: Path, run: FinishedRun, model: nn.Module, private: Private, license: str | None) -> None:
    recipe, results = run.recipe, run.results
    save_file(_contiguous(model.state_dict()), folder / WEIGHTS, metadata={"format": "pt"})
    base: Any = timm.get_pretrained_cfg(recipe.model) if recipe.pretrained and ":" not in recipe.model else None
    licensed = license or (base.license if base is not None else None) or DEFAULT_LICENSE
    package = _package(model)
    config = _write_config(folder, run, model, private, licensed, package)
    head = "# Every setting of the training: accelerate launch -m timm_patchup.training --recipe recipe.yaml\n"
    _write_text(folder / "recipe.yaml", head + Recipe.from_dict(private.clean_values(recipe.to_dict())).to_yaml())
    _write_json(folder / "results.json", private.clean_values(results))
    _write_text(folder / "summary.csv", private.clean(run.summary))
    _plot(folder, f"{config['architecture']}, {recipe.mix}", run)
    report = _copy_report(run.path / REPORT, folder / REPORT, private)
    page = folder / REPORT / "report.md"
    facts = Facts(
        recipe=recipe,
        results=results,
        config=config,
        package=package,
        report=report,
        evaluation=page.read_text(encoding="utf-8") if page.is_file() else "",
        base_model=_base_model(base),
    )
    _write_text(folder / "README.md", private.clean(make_card(facts)))


def _package(model: nn.Module) -> str | None:
    """Return the package that registers the network with timm, None for timm's own networks."""
    cfg: Any = model.pretrained_cfg
    package = model_entrypoint(cfg["architecture"]).__module__.partition(".")[0]
    return None if package == "timm" else package


def _contiguous(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}


def _write_config(
    folder: Path, run: FinishedRun, model: nn.Module, private: Private, licensed: str, package: str | None
) -> dict[str, Any]:
    """Write config.json as timm does, with a section ``patchup``, and return it."""
    recipe, results = run.recipe, run.results
    cfg: Any = model.pretrained_cfg
    cfg["license"] = licensed
    arguments = network_arguments(recipe) | ({"in_chans": recipe.input_size[0]} if recipe.input_size[0] != 3 else {})
    section = {
        "method": recipe.mix,
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


def _plot(folder: Path, title: str, run: FinishedRun) -> None:
    held_out = run.results["chosen_on"] == "validation"
    plot_curves(
        run.rows,
        folder / "curves.png",
        title=title,
        best_epoch=run.results["best_epoch"] if held_out else None,
        val_name="validation" if held_out else "test",
    )


def _copy_report(source: Path, target: Path, private: Private) -> list[str]:
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
                _write_text(copy, private.clean(path.read_text(encoding="utf-8")))
        except ValueError as error:  # UnicodeDecodeError and JSONDecodeError too
            raise HubFailed(f"cannot read {path}: {error}; repair or remove it, then export again") from error
        names.append(f"{REPORT}/{relative.as_posix()}")
    return names


def _base_model(cfg: Any) -> str | None:
    """Return the Hub name of the pretrained weights."""
    if cfg is None or not cfg.hf_hub_id:
        return None
    return f"{cfg.hf_hub_id}{cfg.architecture}.{cfg.tag}" if cfg.hf_hub_id.endswith("/") else cfg.hf_hub_id


def _write_json(path: Path, value: Any) -> None:
    _write_text(path, json.dumps(value, indent=1) + "\n")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _refuse_private(folder: Path, private: Private) -> None:
    """Raise HubError if a file still has anything private."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and private.found_in(path.read_bytes()):
            name = path.relative_to(folder)
            raise HubFailed(f"{name} contains a token, a path or a name of this machine: remove it, then export again")


def _try_with_timm(folder: Path, model: nn.Module) -> None:
    """Load the folder as a timm user does, and compare all weights."""
    try:
        loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).state_dict()
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise HubFailed(f"nothing was exported, because timm cannot load the result: {text}") from error
    own = model.state_dict()
    if own.keys() != loaded.keys() or not all(torch.equal(own[name].cpu(), loaded[name]) for name in own):
        raise HubFailed(
            "nothing was exported, because timm loads other weights: model_kwargs do not rebuild the network"
        )
