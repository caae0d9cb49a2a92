"""Imports go one way: a module imports only from its own layer and those below it."""

import ast
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "timm_patchup"
# Lowest first; layers in one line are at the same height and do not import each other.
LAYERS = [
    {"errors"},
    {"system", "core"},
    {"methods"},
    {"models", "integrations"},
    {"recipe"},
    {"data"},
    {"report"},
    {"runs"},
    {"training", "evaluation"},
    {"hub"},
    {"study"},
    {"cli"},
    {"launch"},
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}


def imported(path: Path, source: str) -> set[tuple[str, ...]]:
    """Return the modules of the package that a file imports anywhere, as parts of their names below the package."""
    here = path.relative_to(PACKAGE.parent).with_suffix("").parts
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = here[: len(here) - node.level] if node.level else ()
            base = (*start, *(node.module.split(".") if node.module else ()))
            found += [(*base, alias.name) for alias in node.names]
    return {name[1:] for name in found if name[0] == PACKAGE.name and len(name) > 1}


def layer_of(path: Path) -> str:
    """Return the layer of a file; each ``__main__`` starts a command, as ``launch`` does."""
    return "launch" if path.name == "__main__.py" else path.relative_to(PACKAGE).with_suffix("").parts[0]


def wrong_imports(path: Path, source: str) -> list[str]:
    layer, known = layer_of(path), [name for name in sorted(imported(path, source)) if name[0] in HEIGHT]
    wrong = [name for name in known if name[0] != layer and HEIGHT[name[0]] >= HEIGHT[layer]]
    return [f"{path.relative_to(PACKAGE)} imports {'.'.join(name)}" for name in wrong]


def modules() -> list[Path]:
    """Return all modules that belong to a layer: all but the public names in the package's ``__init__``."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def test_imports_go_one_way() -> None:
    assert len(modules()) > 80
    assert {layer_of(path) for path in modules()} == HEIGHT.keys()
    assert sum(len(imported(path, path.read_text())) for path in modules()) > 300
    wrong = [line for path in modules() for line in wrong_imports(path, path.read_text())]
    assert wrong == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/mixer.py", "from ..recipe import Recipe"),
        ("recipe/schema.py", "def later():\n    from timm_patchup.data.loader import load_data"),
        ("report/curves.py", "from ..runs.folder import EpochRow"),
        ("runs/load.py", "from ..hub.failures import explain"),
        ("training/run.py", "if TYPE_CHECKING:\n    from ..cli.train import Call"),
        ("training/run.py", "import timm_patchup.evaluation.run"),
        ("evaluation/run.py", "from ..training import build"),
        ("system/files.py", "from ..core import mixer"),
        ("hub/export.py", "from .. import study"),
        ("study/timing.py", "from ..cli.command import Parser"),
        ("integrations/lightning.py", "from timm_patchup.training.learner import Learner"),
    ],
)
def test_an_import_the_wrong_way_is_found(file: str, line: str) -> None:
    assert wrong_imports(PACKAGE / file, line) != []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("training/__main__.py", "from ..cli.train import main"),
        ("launch.py", "from .cli.command import print_errors"),
        ("cli/timing.py", "from .train import make_parser"),
        ("cli/study.py", "from ..study.runner import Runner"),
        ("training/run.py", "from .loop import Trainer\nfrom ..runs.folder import RunFolder"),
        ("hub/export.py", "from .. import __version__"),
    ],
)
def test_an_import_the_right_way_is_not(file: str, line: str) -> None:
    assert wrong_imports(PACKAGE / file, line) == []
