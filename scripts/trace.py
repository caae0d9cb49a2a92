"""Trace one batch through the package: mix, forward, loss of hard PatchUp at one site.

    python scripts/trace.py [--calls]

Prints how many calls of the package's functions it takes, how many of them enter another file than their caller's, and
the files. ``tests/scripts/test_trace.py`` keeps the numbers from growing.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import timm
import torch

import timm_patchup
from timm_patchup import PatchUp

_PACKAGE = Path(timm_patchup.__file__).parent
_PART_OF_A_CALL = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>")


@dataclass(frozen=True)
class Call:
    """A call of a function of the package: its name, its file, and the file of its caller in the package, if any."""

    name: str
    file: str
    caller: str | None


def trace_batch() -> list[Call]:
    """Return the calls of one batch, in their order; what is done for the first batch only was done before."""
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=10).train()
    mix = PatchUp(model, mode="hard", prob=1.0, sites=["stage1"], block_size=3)
    images, labels = torch.randn(4, 3, 64, 64), torch.tensor([3, 1, 4, 9])
    calls: list[Call] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (file := _file_of(frame)) and frame.f_code.co_name not in _PART_OF_A_CALL:
            calls.append(Call(frame.f_code.co_name, file, _caller_of(frame)))

    for profiler in (None, note):
        sys.setprofile(profiler)
        try:
            x, target = mix(images, labels)
            mix.loss(model(x), target)
        finally:
            sys.setprofile(None)
    return calls


def entries(calls: list[Call]) -> int:
    """Return how many calls enter another file."""
    return sum(call.file != call.caller for call in calls)


def files(calls: list[Call]) -> list[str]:
    """Return the files, in the order in which they are entered first."""
    return list(dict.fromkeys(call.file for call in calls))


def _file_of(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(_PACKAGE)) if path.is_relative_to(_PACKAGE) else None


def _caller_of(frame: FrameType) -> str | None:
    """Return the file of the nearest caller in the package: between them may be torch, or a decorator."""
    caller = frame.f_back
    while caller is not None and _file_of(caller) is None:
        caller = caller.f_back
    return None if caller is None else _file_of(caller)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", action="store_true", help="also print every call")
    arguments = parser.parse_args()
    calls = trace_batch()
    for call in calls if arguments.calls else ():
        print(f"{call.file:24} {call.name}" + ("" if call.caller == call.file else f"  from {call.caller}"))
    print(f"{len(calls)} calls, {entries(calls)} entries into another file, {len(files(calls))} files:")
    print(*files(calls), sep="\n")


if __name__ == "__main__":
    main()
