"""What ``import timm_patchup`` costs, against timm alone."""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable

from ..timing import Part, Row, medians


def rows(flags: argparse.Namespace) -> Iterable[Row]:
    """Importing the package, in units of importing timm."""

    def importing(module: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    seconds = medians({name: importing(name) for name in ("timm", "timm_patchup")}, flags.rounds)
    yield {"timm": 1.0, "timm_patchup": round(seconds["timm_patchup"] / seconds["timm"], 2)}


PART = Part("import", "Import", rows)
