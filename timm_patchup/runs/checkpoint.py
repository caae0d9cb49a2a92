"""Checkpoints: one folder each, complete or absent, verified when read.

``checkpoints/step-00000450/`` has model.safetensors, ema.safetensors (if there is an average), state.pt (optimizer,
scaler, mixer, position, sums, rows of the summary; read with ``weights_only``) and manifest.json with a checksum of
each. The weights of the best epoch so far are next to it; the manifest has their name and checksum. No generator state
is saved: all randomness of a run follows from (seed, rank, update), see ``training/learner.py``.
"""

import hashlib
import io
import json
import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from ..errors import CheckpointError, UserError, one_line
from ..system.checked import check_keys, check_name, read_json
from ..system.files import PARTIAL, checksum, create_folder, flush_to_disk, open_file, remove, replacing

FORMAT = 1
_ASIDE = "aside-"
_MANIFEST = "manifest.json"
_FILES = ("model.safetensors", "state.pt")  # of every checkpoint
# The names that a manifest may have.
_FILE, _BEST = r"(model|ema)\.safetensors|state\.pt", r"best-\d{5,}\.safetensors"
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """The content of one checkpoint."""

    path: Path
    model: Weights
    ema: Weights | None
    state: dict[str, Any]
    best: str | None = None
    best_sum: str | None = None


class Checkpoints:
    """The checkpoints of one run; only the main process writes."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._best_sums: dict[str, str] = {}  # of the best weights that were written or restored

    def paths(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if path.is_dir() and not path.is_symlink())

    def save(self, step: int, *, model: Weights, ema: Weights | None, state: dict[str, Any], best: str | None) -> Path:
        """Write a checkpoint and remove those that are not kept.

        It is written under a temporary name and then renamed: a run that dies halfway leaves the older ones as they
        are. Later steps, left from before a resume of an older checkpoint, are removed too.
        """
        target = self.folder / f"step-{step:08d}"
        partial = self.folder / f"{PARTIAL}{target.name}"
        create_folder(self.folder)
        self.clean()
        partial.mkdir()
        try:
            _save_weights(model, partial / "model.safetensors")
            if ema is not None:
                _save_weights(ema, partial / "ema.safetensors")
            _save_state(state, partial / "state.pt")
            sums = {path.name: checksum(path) for path in sorted(partial.iterdir())}
            best_sum = None if best is None else self._best_sums.get(best)
            manifest = {"format": FORMAT, "step": step, "best": best, "best_sha256": best_sum, "sha256": sums}
            (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            for path in (*partial.iterdir(), partial):
                flush_to_disk(path)
            if os.path.lexists(target):
                target.rename(self.folder / f"{PARTIAL}old-{target.name}")
            partial.rename(target)
            flush_to_disk(self.folder)  # before older ones are removed
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._prune(target)
        return target

    @staticmethod
    def best_name(epoch: int) -> str:
        return f"best-{epoch:05d}.safetensors"

    def save_best(self, name: str, weights: Weights) -> None:
        """Write the weights of the best epoch so far."""
        create_folder(self.folder)
        content = _weights_bytes(weights)
        with replacing(self.folder / name) as file:
            file.write(content)
        self._best_sums[name] = hashlib.sha256(content).hexdigest()

    def load_best(self, name: str) -> Weights:
        """Read the best weights and compare them with what was written.

        Raises:
            CheckpointError: they are missing or damaged.
        """
        _require_best(self.folder / name, self._best_sums.get(name), called=f"the best weights {name}")
        try:
            return load_file(self.folder / name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read the best weights {name}: {error}") from error

    def best_checksum(self, name: str) -> str:
        """Return the checksum of best weights that were written or restored."""
        return self._best_sums.get(name) or checksum(self.folder / name)

    def restored(self, checkpoint: Checkpoint) -> None:
        """Take over what a restored checkpoint records about the best weights."""
        if checkpoint.best is not None and checkpoint.best_sum is not None:
            self._best_sums[checkpoint.best] = checkpoint.best_sum

    def repair_best(self, copy: Path) -> list[str]:
        """Replace best weights that are damaged by their copy in the run's folder, if that is intact; return notes."""
        notes = []
        for name, expected in {_best_of(path) for path in self.paths()}:
            if name is None or expected is None or _has_checksum(self.folder / name, expected):
                continue
            if _has_checksum(copy, expected):
                with replacing(self.folder / name) as file, open_file(copy) as copied:
                    shutil.copyfileobj(copied, file)
                notes.append(f"the best weights {name} were damaged or missing: restored from {copy.name}")
        return notes

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest intact checkpoint, and a line per newer one that is damaged."""
        damaged: list[str] = []
        for path in reversed(self.paths()):
            try:
                return load_checkpoint(path), damaged
            except CheckpointError as error:
                damaged.append(str(error))
        return None, damaged

    def set_aside_after(self, intact: Path | None) -> None:
        """Rename checkpoints after the intact one, so that they are neither counted nor lost."""
        for path in self.paths():
            if intact is None or path.name > intact.name:
                aside = path.with_name(f"{_ASIDE}{path.name}")
                remove(aside)
                path.rename(aside)

    def clean(self) -> None:
        """Remove what interrupted writes have left."""
        for path in self.folder.glob(f"{PARTIAL}*"):
            remove(path)

    def _prune(self, newest: Path) -> None:
        self.clean()
        paths = self.paths()
        for path in paths:
            if path.name > newest.name:
                shutil.rmtree(path)
        kept = [path for path in paths if path.name <= newest.name]
        for path in kept[: -self.keep]:
            shutil.rmtree(path)
        named = {_best_of(path)[0] for path in (*kept[-self.keep :], *self.folder.glob(f"{_ASIDE}*"))}
        for path in self.folder.glob("best-*.safetensors"):
            if path.name not in named:
                remove(path)


def _best_of(path: Path) -> tuple[str | None, str | None]:
    """Return name and checksum of the best weights of a checkpoint, None if there are none or it is damaged."""
    try:
        manifest = _read_manifest(path)
        return manifest["best"], manifest["best_sha256"]
    except UserError:
        return None, None


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint; raise UserError if it is damaged, or its best weights are another file."""
    # Earlier releases had no checksum of the best weights.
    manifest = {"best_sha256": None, **read_json(path / _MANIFEST)}
    check_keys(manifest, {"best": (str, NoneType), "best_sha256": (str, NoneType)}, where=_MANIFEST)
    if manifest["best"] is not None:
        check_name(manifest["best"], _BEST, where=_MANIFEST)
    return manifest


def _has_checksum(path: Path, expected: str) -> bool:
    try:
        return checksum(path) == expected
    except OSError:
        return False


def _require_best(path: Path, expected: str | None, *, called: str) -> None:
    if not path.is_file():
        raise CheckpointError(f"{called} are missing")
    if expected is not None and checksum(path) != expected:
        raise CheckpointError(f"{called} are damaged: they do not match their checksum")


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one checkpoint.

    Raises:
        CheckpointError: it is damaged or has another format; the message names it.
    """
    try:
        manifest = _read_manifest(path)
        sums = check_keys(manifest, {"format": int, "sha256": dict}, where=_MANIFEST)["sha256"]
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path.name} has format {manifest['format']}, this version reads {FORMAT}")
        check_keys(sums, dict.fromkeys(_FILES, str), where=f"{_MANIFEST}: sha256")
        for name, expected in sums.items():
            if checksum(path / check_name(name, _FILE, where=_MANIFEST)) != expected:
                raise CheckpointError(f"{path.name} is damaged: {name} does not match its checksum")
        best, best_sum = manifest["best"], manifest["best_sha256"]
        if best is not None and best_sum is not None:
            _require_best(path.parent / best, best_sum, called=f"{path.name}: its best weights {best}")
        ema = load_file(path / "ema.safetensors") if "ema.safetensors" in sums else None
        return Checkpoint(
            path=path,
            model=load_file(path / "model.safetensors"),
            ema=ema,
            state=torch.load(path / "state.pt", map_location="cpu", weights_only=True),
            best=best,
            best_sum=best_sum,
        )
    except CheckpointError:
        raise
    except UserError as error:
        raise CheckpointError(f"{path.name} is damaged: {error}") from error
    except pickle.UnpicklingError as error:  # torch's message explains how to load it anyway
        raise CheckpointError(f"{path.name} is damaged: state.pt has more than plain values and tensors") from error
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, RuntimeError, EOFError) as error:
        reason = one_line(error, 160)
        raise CheckpointError(f"{path.name} is damaged: {type(error).__name__}: {reason}") from error


def _save_weights(weights: Weights, path: Path) -> None:
    path.write_bytes(_weights_bytes(weights))


def _weights_bytes(weights: Weights) -> bytes:
    return safetensors_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})


def _save_state(state: dict[str, Any], path: Path) -> None:
    # Through memory: torch's own writer reports a full disk as an error of its zip format.
    buffer = io.BytesIO()
    torch.save(state, buffer)
    path.write_bytes(buffer.getbuffer())
