"""What holds for all adapters: they stay thin, their frameworks are tested, and nobody else has to install them."""

import re
import subprocess
import sys

from tests.support.paths import ROOT

MODULES = [path for path in (ROOT / "timm_patchup" / "integrations").glob("*.py") if path.stem != "__init__"]
FRAMEWORKS = {path.stem for path in MODULES}


def test_adapters_are_found_and_thin() -> None:
    assert {"fastai", "lightning", "transformers"} <= FRAMEWORKS
    assert all(len(path.read_text().splitlines()) < 80 for path in MODULES)


def test_frameworks_are_installed_for_the_tests_and_pinned() -> None:
    project, pinned = (ROOT / "pyproject.toml").read_text(), (ROOT / "constraints.txt").read_text()
    extra = project.split("\ntest = [")[1].split("\n]")[0]
    assert set(re.findall(r'"([\w-]+)', extra)) >= FRAMEWORKS
    assert set(re.findall(r"^([\w.-]+)==", pinned, flags=re.MULTILINE)) >= FRAMEWORKS


def test_the_package_itself_imports_none() -> None:
    code = f"import sys, timm_patchup, timm_patchup.integrations; print({FRAMEWORKS!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
