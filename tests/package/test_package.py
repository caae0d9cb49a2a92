"""The wheel: recipes and data work after a plain pip install, without a checkout, and what is imported is declared."""

import ast
import re
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and unpack it into a folder, as pip does."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_files_of_the_wheel(installed: Path) -> None:
    shipped = {str(path.relative_to(installed / "timm_patchup" / "recipes")) for path in installed.rglob("*.yaml")}
    assert shipped == {str(path.relative_to(ROOT / "recipes")) for path in (ROOT / "recipes").rglob("*.yaml")}
    assert len(list(installed.rglob("*.parquet"))) == 2
    assert (installed / "timm_patchup" / "py.typed").is_file()
    assert sorted(path.name for path in installed.iterdir() if "dist-info" not in path.name) == ["timm_patchup"]


def test_recipes_train_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(installed)!r})\n"
    code += f"import timm_patchup; assert timm_patchup.__file__.startswith({str(installed)!r})\n"
    code += "from timm_patchup.cli.train import main\n"
    flags = ["--recipe", "fashion_mini_hard_patchup", "--limit", "100", "--epochs", "1", "--threads", "1"]
    code += f"main({[*flags, '--output', str(tmp_path)]!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fashion_mini_hard_patchup" / "model.safetensors").is_file()


def imported_packages() -> set[str]:
    """Return the top-level packages of others that the package imports anywhere."""
    names: list[str] = []
    for path in (ROOT / "timm_patchup").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.append(node.module)
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"timm_patchup"}


def test_imported_packages_are_declared() -> None:
    declared = (ROOT / "pyproject.toml").read_text().split("\ndependencies = [")[1].split("[project.scripts]")[0]
    known = {re.sub(r"[-_.]+", "-", name).lower() for name in re.findall(r'"([\w.-]+)', declared)}
    providers = packages_distributions()
    imported = imported_packages()
    assert {"torch", "PIL", "numpy", "yaml"} <= imported
    for name in imported:
        assert {re.sub(r"[-_.]+", "-", one).lower() for one in providers[name]} & known, f"{name} is not declared"
