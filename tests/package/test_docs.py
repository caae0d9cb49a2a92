"""The documentation holds: code blocks run, generated tables are current, links lead somewhere, commands exist."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import timm
import yaml

from tests.support.launching import run_command
from tests.support.paths import ROOT
from timm_patchup import PatchUp, create_mixer, list_methods
from timm_patchup.core.method import make_method, method_settings
from timm_patchup.methods import patchup
from timm_patchup.recipe import load_recipe

PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("*/**/*.md"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts) and "fashion_mini" not in path.parts
)
README = (ROOT / "README.md").read_text()
CARDS = (ROOT / "timm_patchup" / "methods" / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
PYTHON = [(path, code) for path in PAGES for language, code in BLOCK.findall(path.read_text()) if language == "python"]
SHELL = [(path, code) for path in PAGES for language, code in BLOCK.findall(path.read_text()) if language == "bash"]
LAUNCH = [code for _, code in SHELL if code.startswith("timm-patchup ")]
# What the README's first block takes for granted: a loop with a model and a batch.
LOOP = (
    "import timm, torch\nfrom timm_patchup import PatchUp\nmodel = timm.create_model('test_resnet', num_classes=10)\n"
)
LOOP += "x, y = torch.randn(4, 3, 64, 64), torch.randint(10, (4,))\n"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_tables", ROOT / "scripts" / "update_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_and_blocks_are_found() -> None:
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {path.name for path in PAGES}
    assert len(PAGES) >= 8
    assert sum(path == ROOT / "README.md" for path, _ in PYTHON) == 3
    assert len(LAUNCH) == 1
    assert len(README.splitlines()) <= 220


def test_prose_fits_in_120_columns() -> None:
    """Ruff does not see Markdown. Rows of tables cannot be wrapped."""
    long = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > 120 and not line.startswith("|")
    ]
    assert long == []


@pytest.mark.parametrize(
    ("page", "code"), PYTHON, ids=[f"{path.parent.name}-{n}" for n, (path, _) in enumerate(PYTHON)]
)
def test_python_blocks_run(page: Path, code: str, tmp_path: Path) -> None:
    whole = code if "import" in code else LOOP + code
    if "from fastai" in code:
        pytest.importorskip("fastai", reason="fastai is in the extra [test]")
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_example_of_a_method_works_in_a_recipe() -> None:
    code = next(code for page, code in PYTHON if "register_method" in code and page.parent.name == "methods")
    more = """
import timm, torch
from timm_patchup import create_mixer
from timm_patchup.recipe import Recipe

assert Recipe.from_dict({"mix": "swap_rows", "mix_rate": "5e-1"}).mix_settings["rate"] == 0.5
model = timm.create_model("test_resnet", num_classes=10)
mix = create_mixer("swap_rows", model, rate=0.5)
x, target = mix(torch.randn(4, 3, 64, 64), torch.randint(10, (4,)))
mix.loss(model(x), target).backward()
"""
    done = subprocess.run([sys.executable, "-c", code + more], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", LAUNCH)
def test_launcher_line_runs(line: str, train_script: Path, tmp_path: Path) -> None:
    command, path, *flags = shlex.split(line)
    assert path == "path/to/train.py"
    done = run_command(
        Path(sys.executable).with_name(command), train_script, *flags, "--output", tmp_path / "args.yaml"
    )
    assert done.returncode == 0, done.stderr
    assert "MixTask" in done.stdout


def test_generated_tables_are_current(tables: ModuleType) -> None:
    found = []
    for page in PAGES:
        text = page.read_text()
        new, names = tables.update(text)
        assert new == text, f"{page.name} in {page.parent.name}: run python scripts/update_tables.py"
        found += names
    assert {"patchup", "keys", "benchmarks"} <= set(found)
    with_settings = {name for name in list_methods() if method_settings(name)} - {"hard_patchup", "soft_patchup"}
    assert {name.removeprefix("settings:") for name in found if name.startswith("settings:")} == with_settings


def test_headers_of_benchmarks_are_current(tables: ModuleType) -> None:
    headers = {page: text for page, text in tables.pages().items() if page.suffix == ".yaml"}
    assert len(headers) == 23
    for page, text in headers.items():
        assert text == page.read_text(), f"{page.name}: run python scripts/update_tables.py"
        assert "# Cost" in text or page.stem == "finetune", "the photos are yours"


def test_tables_follow_the_declarations(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tables.patchup_table()
    assert "| `gamma` | 0.5 | 0.75 | a number in [0, 1] |" in before
    monkeypatch.setattr(tables, "method_settings", lambda name: {})
    assert tables.patchup_table() != before


def test_every_method_has_a_card() -> None:
    cards = dict(re.findall(r"^### ([\w, ]+)\n(.*?)(?=^##)", CARDS, flags=re.MULTILINE | re.DOTALL))
    named = {name: card for title, card in cards.items() for name in title.split(", ")}
    assert set(named) == set(list_methods())
    for name, card in named.items():
        assert f"[`{name}`](#" in CARDS, "a row in the table of all methods"
        assert name == "none" or "arXiv" in card


def test_the_readme_names_the_methods_of_the_small_study() -> None:
    study = yaml.safe_load((ROOT / "recipes" / "studies" / "fashion_mini.yaml").read_text())
    compared = [name for group in study["groups"] for name in group["methods"]]
    assert len(compared) >= 10
    for name in compared:
        assert f"`{name}`" in README


def test_soft_and_hard_defaults_agree_everywhere() -> None:
    """Constructor, registry, recipe, card and README: one declaration, five places."""
    rows = re.findall(
        r"^\| `(\w+)` \| (\S+) \| (\S+) \|", README.split("<!-- table:patchup -->")[1], flags=re.MULTILINE
    )
    assert rows == re.findall(
        r"^\| `(\w+)` \| (\S+) \| (\S+) \|",
        CARDS.split("<!-- table:patchup -->")[1].split("<!-- /table -->")[0],
        flags=re.MULTILINE,
    )
    for column, mode in enumerate(("hard", "soft"), start=1):
        name = f"{mode}_patchup"
        shown = {row[0]: row[column] for row in rows if row[column] != "-"}
        method = make_method(name)
        assert {key: "none" if value is None else str(value) for key, value in method.settings().items()} == shown
        assert type(method)() == method == {"hard": patchup.HardPatchUp(), "soft": patchup.SoftPatchUp()}[mode]
        model = timm.create_model("test_resnet")
        made = create_mixer(name, model)
        assert made.method == method
        made.detach()
        assert PatchUp(model, mode=mode).method == method  # type: ignore[arg-type]
        recipe = load_recipe(f"cifar10_preactresnet18_{name}", {"mix_sites": None})
        assert recipe.method == method
    assert make_method("soft_patchup").prob == 1.0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in anchors, target


def test_recipes_that_are_named_exist() -> None:
    named = {name for path in PAGES for name in re.findall(r"--recipe (\w+)(?![\w/.])", path.read_text())} - {"NAME"}
    assert len(named) >= 3
    for name in named:
        load_recipe(name)


def test_scripts_that_are_named_exist() -> None:
    named = {name for path in PAGES for name in re.findall(r"\bscripts/(\w+\.py)", path.read_text())}
    assert len(named) >= 6
    for name in named:
        assert (ROOT / "scripts" / name).is_file(), name


def test_set_up_commands_use_the_tested_releases() -> None:
    """Both are run as they stand: the test command by .ci/run, the train command by hand in a new environment."""
    train = README.split("<!-- train-command -->\n```bash\n")[1].split("\n```")[0]
    test = README.split("<!-- test-command -->\n```bash\n")[1].split("\n```")[0]
    set_up = "python3 -m venv .venv && .venv/bin/pip install -e {} -c constraints.txt && .venv/bin/{}"
    assert train == set_up.format(".", "python scripts/train.py")
    assert test == set_up.format("'.[test]'", "pytest")
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+);", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    assert {"torch", "torchvision", "timm", "accelerate", "datasets", "huggingface_hub"} <= pinned.keys()
