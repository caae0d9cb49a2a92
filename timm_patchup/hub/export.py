"""Export a finished run as a folder that timm loads.

The folder is written under a temporary name (``export_files.py``), searched for private words and loaded with timm
before it replaces an earlier export.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import timm
import torch
from torch import nn

from ..data.source import HUB_PREFIX
from ..errors import HubError, UserError, one_line
from ..runs.finished import FinishedRun, read_finished_run
from ..runs.folder import COLUMNS, RunFolder
from ..runs.from_run import build_trained
from ..runs.weights import weights_digest
from ..system.checked import check_keys, read_json
from ..system.files import checksum, remove
from ..system.locks import LOCK, locked
from ..system.output import say
from ..system.privacy import PrivateWords
from .card import CITATION, REPORT
from .export_files import write_files, write_text

# Never pushed: digests of the files of an export, so that nothing else is mistaken for them.
WRITTEN = ".exported.json"


def export(run_dir: str | Path, out_dir: str | Path, *, license: str | None = None) -> Path:
    """Export a finished run to a folder for the Hub.

    Args:
        run_dir: the folder of a finished run.
        out_dir: the folder to write; an earlier export is replaced unless files in it were added or edited since.
        license: license of the weights; None for the license of the pretrained weights, or Apache-2.0 without any.

    Returns:
        The folder, which ``timm.create_model("local-dir:...", pretrained=True)`` loads.

    Raises:
        HubError: the run is not finished, or the folder has other files. Nothing was changed then.

    Example:
        >>> export("output/fashion_mini_hard_patchup", "output/for_the_hub")
    """
    out, folder = Path(out_dir), RunFolder(Path(run_dir))
    if folder.state() != "finished":
        read_finished_run(folder.path)  # raises with what it is instead
    waiting = f"another process is at work in {folder.path}: waiting for it"
    with folder.locked(waiting=lambda: say(waiting, stream=sys.stderr)):
        return _export(read_finished_run(folder.path), out, license)


def _export(run: FinishedRun, out: Path, license: str | None) -> Path:
    _refuse_to_replace(out)
    model = build_trained(run.recipe, run.weights, where=str(run.path))
    _refuse_stale(run, model)
    private = PrivateWords(folders=(run.path, out, Path.cwd()), known=_known_words(run))
    place = out.absolute()  # "." has neither a name nor a parent
    place.parent.mkdir(parents=True, exist_ok=True)
    waiting = f"another process is exporting to {out}: waiting for it"
    lock = place.parent / f".{place.name}{LOCK}"  # other runs may be exported to this folder, too
    with locked(lock, busy=waiting, waiting=lambda: say(waiting, stream=sys.stderr)):
        _refuse_to_replace(out)
        _replace(place, run, model, private, license)
    return out


def _replace(out: Path, run: FinishedRun, model: nn.Module, private: PrivateWords, license: str | None) -> None:
    """Write and check an export under a temporary name, then put it in the place of an earlier one."""
    partial = out.parent / f".partial-{out.name}"
    remove(partial)
    partial.mkdir()
    try:
        write_files(partial, run, model, private, license)
        _refuse_private(partial, private)
        _try_with_timm(partial, model)
        write_text(partial / WRITTEN, json.dumps(_digests(partial), indent=1) + "\n")
        if out.exists():
            shutil.rmtree(out)
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def is_export(folder: Path) -> bool:
    """Return whether a folder was written by ``export``."""
    try:
        return "patchup" in read_json(folder / "config.json")
    except UserError:
        return False


def _refuse_to_replace(out: Path) -> None:
    """Raise HubError if the folder has anything that the last export did not write."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise HubError(f"{out} is not a folder: choose another one")
    if not out.exists() or not any(out.iterdir()):
        return
    try:
        written = read_json(out / WRITTEN)
    except UserError:
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
        models = read_json(path, models=dict)["models"].values()
        evaluated = [check_keys(entry, {"weights": str}, where=str(path))["weights"] for entry in models]
    except UserError:  # no report, or not one of evaluate.py
        return
    if weights_digest(model) not in evaluated:
        again = f"python -m timm_patchup.evaluation --model {run.path} --output {path.parent} --force"
        raise HubError(f"{path.parent} is a report on other weights than the run's: remove it, or run {again}")


def _known_words(run: FinishedRun) -> frozenset[str]:
    """Return words that may be the user's name, too: those in the files of a run, such as a class, and the citation."""
    recipe, results, keys = run.recipe, run.results, run.recipe.to_dict()
    dataset = recipe.dataset.removeprefix(HUB_PREFIX) if recipe.dataset.startswith(HUB_PREFIX) else ""
    chosen = [value for key, value in keys.items() if isinstance(value, str) and key != "dataset"]
    names = [*keys, *COLUMNS, *results, *results["test"], *chosen, *(results.get("class_names") or ())]
    plain = [*dataset.split("/"), *(name for name in names if "/" not in name and "\\" not in name)]
    parts = [word for name in plain for word in re.split(r"[^A-Za-z0-9]+", name)]
    return frozenset([*plain, *parts, *re.findall(r"[a-z]+", CITATION.lower())])


def _refuse_private(folder: Path, private: PrivateWords) -> None:
    """Raise HubError if a file still has anything private."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and private.found_in(path.read_bytes()):
            name = path.relative_to(folder)
            why = "contains a token, a path or a name of this machine"
            raise HubError(f"{name} {why}: remove it, then export again", retry=True)


def _try_with_timm(folder: Path, model: nn.Module) -> None:
    """Load the folder as a timm user does, and compare all weights."""
    try:
        loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).state_dict()
    except Exception as error:
        text = one_line(error, 200)
        raise HubError(f"nothing was exported, because timm cannot load the result: {text}", retry=True) from error
    own = model.state_dict()
    if own.keys() != loaded.keys() or not all(torch.equal(own[name].cpu(), loaded[name]) for name in own):
        why = "timm loads other weights: model_kwargs do not rebuild the network"
        raise HubError(f"nothing was exported, because {why}", retry=True)
