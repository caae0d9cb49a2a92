"""Foreign manifests: names, values and states of checkpoints that no run has written, with the right checksums."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from timm_patchup.system.files import checksum

from ..tally import Tally
from ..trials import scratch
from ..victims import Victims
from .damage import resume, stop_late

Manifest = dict[str, Any]
ODD_VALUES: list[Any] = [None, -1, 1e308, "", "x" * 5000, "\x1b[2J", [], {}, [[[[1]]]], {"a": {"b": 1}}, True]


def _names(victims: Victims, checkpoint: Path) -> list[str]:
    """Return names that are paths: absolute, upwards, into a folder, of a FIFO."""
    relative = os.path.relpath(victims.file, checkpoint.parent)
    pipe = checkpoint / "pipe"
    if not pipe.exists():
        os.mkfifo(pipe)
    absolute = [str(path) for path in (victims.file, victims.nowhere, victims.inside)]
    return [*absolute, relative, f"best-00001.safetensors/../{relative}", "pipe", "", ".", "/dev/zero"]


def _best(manifest: Manifest, state: Manifest, name: str, chooser: random.Random) -> None:
    manifest["best"] = name


def _position(manifest: Manifest, state: Manifest, name: str, chooser: random.Random) -> None:
    state["position"]["best_file"] = name


def _both(manifest: Manifest, state: Manifest, name: str, chooser: random.Random) -> None:
    manifest["best"] = state["position"]["best_file"] = name


def _file(manifest: Manifest, state: Manifest, name: str, chooser: random.Random) -> None:
    manifest["sha256"][name] = "0" * 64


def _value(manifest: Manifest, state: Manifest, name: str, chooser: random.Random) -> None:
    manifest[chooser.choice([*manifest, "more"])] = chooser.choice(ODD_VALUES)


def _state(manifest: Manifest, state: Manifest, name: str, chooser: random.Random) -> None:
    state[chooser.choice([key for key in state if key != "recipe"])] = chooser.choice(ODD_VALUES)


def _field(manifest: Manifest, state: Manifest, name: str, chooser: random.Random) -> None:
    state["position"][chooser.choice([*state["position"], "more"])] = chooser.choice(ODD_VALUES)


FORGERIES: list[Callable[[Manifest, Manifest, str, random.Random], None]]
FORGERIES = [_best, _position, _both, _file, _value, _state, _field]


def trials(count: int, chooser: random.Random) -> list[Tally]:
    tally = Tally("foreign manifest or state, run resumed")
    with scratch() as folder:
        stop_late(folder)
        for number in range(count):
            with scratch() as copy:
                shutil.copytree(folder / "a", copy / "a")
                victims = Victims(copy / "elsewhere")
                what = _forge(copy / "a", FORGERIES[number % len(FORGERIES)], victims, chooser)
                resume(tally, copy, what, same=False)
                if harm := victims.harm():
                    tally.fail(f"{what}: {harm} changed")
    return [tally]


def _forge(run: Path, forgery: Callable[..., None], victims: Victims, chooser: random.Random) -> str:
    """Forge all checkpoints of a run alike, with the checksums that belong to them; return what was done."""
    (run / "model.safetensors").write_bytes(b"any bytes")
    moment, name = chooser.getrandbits(32), ""
    for checkpoint in sorted(run.glob("checkpoints/step-*")):
        names = _names(victims, checkpoint)
        own = random.Random(moment)  # the same in every checkpoint
        name = own.choice(names)
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        state = torch.load(checkpoint / "state.pt", weights_only=True)
        manifest["best_sha256"] = checksum(run / "model.safetensors")
        forgery(manifest, state, name, own)
        torch.save(state, checkpoint / "state.pt")
        if isinstance(manifest.get("sha256"), dict) and "state.pt" in manifest["sha256"]:
            manifest["sha256"]["state.pt"] = checksum(checkpoint / "state.pt")
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    return f"{forgery.__name__} {name[:40]!r}, seed {moment}"
