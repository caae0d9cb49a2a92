"""A method of a user's own, by its path: in calls, recipes, commands and timm's script; never from a file just read."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
import yaml
from torch import nn

import timm_patchup
from tests.hub.hub_runs import make_run
from tests.study.studying import study_here
from tests.support.launching import run_command
from tests.support.paths import ROOT
from tests.support.training import TINY, digests, train_here
from timm_patchup import create_mixer, methods
from timm_patchup.core import method as method_module
from timm_patchup.core.method import Method
from timm_patchup.errors import UserError
from timm_patchup.hub import export, load
from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.recipe.compose import read_resolved
from timm_patchup.recipe.data_names import load_data_spec
from timm_patchup.recipe.layers import stored_recipe
from timm_patchup.runs.load import load_with_recipe

NAME = "my_methods:SwapRows"
PAGE = (Path(methods.__file__).parent / "README.md").read_text()
EXAMPLE = next(code for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S) if "register_method" in code)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of the registry, and no trace of the module."""
    monkeypatch.setattr(method_module, "_METHODS", dict(method_module._METHODS))
    yield
    for name in ("my_methods", "broken", "needs_more"):
        sys.modules.pop(name, None)
    timm_patchup.unregister()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the example of the documentation in it; what imports it leaves a mark."""
    (tmp_path / "my_methods.py").write_text(EXAMPLE + "\nopen('imported', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.strip().splitlines()) <= 20


@pytest.mark.usefixtures("here")
def test_in_calls() -> None:
    before = list(sys.path)
    model = timm.create_model("test_resnet", num_classes=10)
    mix = create_mixer(NAME, model, rate=0.5)
    assert sys.path == before
    assert type(mix.method) is method_module.method_type(NAME) is method_module.method_type("swap_rows")
    assert mix.method.settings()["rate"] == 0.5
    x, target = mix(torch.randn(4, 3, 64, 64), torch.tensor([1, 2, 3, 4]))
    mix.loss(model(x), target).backward()
    mix.detach()
    assert [member.name for member in create_mixer(["cutmix", NAME], model).method.members] == ["cutmix", "swap_rows"]
    timm_patchup.register(NAME, rate=0.25)
    task = timm.task.ClassificationTask(timm.create_model("test_resnet"), nn.CrossEntropyLoss(), verbose=False)
    assert task.mixer.method.rate == 0.25


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_metods:SwapRows", "mix: no module 'my_metods' in this environment or the working directory"),
        ("timm.no:SwapRows", "mix: no module 'timm.no' in this environment or the working directory"),
        ("my_methods:SwapRow", "mix: my_methods has no 'SwapRow'; did you mean SwapRows?"),
        ("my_methods:Mix", "method 'my_methods:Mix' must be a frozen dataclass derived from Method, got <class"),
        (
            "my_methods:dataclass",
            "method 'my_methods:dataclass' must be a frozen dataclass derived from Method",
        ),
        ("broken:Any", "mix: importing broken failed: ZeroDivisionError: division by zero"),
        ("needs_more:Any", "mix: importing needs_more failed: No module named 'nothing_like_that'"),
        ("my_methods:", "mix: unknown method 'my_methods:'"),
        ("../my_methods:SwapRows", "mix: unknown method '../my_methods:SwapRows'"),
    ],
)
def test_what_cannot_be_imported_ends_in_one_line(here: Path, name: str, message: str) -> None:
    (here / "broken.py").write_text("1 / 0\n")
    (here / "needs_more.py").write_text("import nothing_like_that\n")
    with pytest.raises(UserError) as caught:
        load_recipe("fashion_mini_none", {"mix": name})
    (line,) = caught.value.problems
    assert line.startswith(message)


@pytest.fixture
def recipe_file(here: Path) -> Path:
    """A recipe that names the module, as one that came with a model may."""
    path = here / "recipe.yaml"
    path.write_text(f"include: [fashion_mini_none]\nmix: {NAME}\nmix_rate: 0.5\n")
    return path


def the_refusal(problems: list[str]) -> str:
    """Return the line, after checking that it says what would be imported and how to allow it."""
    (line,) = problems
    assert all(part in line for part in (NAME, "import my_methods", "--allow-imports", f"--mix {NAME}"))
    return line


def test_a_module_that_a_file_names_is_imported_with_consent_only(here: Path, recipe_file: Path) -> None:
    for path, overrides in ((recipe_file, {}), (recipe_file, {"epochs": 2}), (recipe_file, {"mix_rate": 0.4})):
        with pytest.raises(UserError) as caught:
            load_recipe(path, overrides)
        assert the_refusal(caught.value.problems).startswith(str(path))
    including = here / "including.yaml"
    including.write_text(f"include: [{recipe_file}]\nepochs: 2\n")
    several = here / "several.yaml"
    several.write_text(f"include: [fashion_mini_none]\nmix: [cutmix, {NAME}]\n")
    for path in (including, several):
        with pytest.raises(UserError):
            load_recipe(path)
    assert load_recipe(recipe_file, {"mix": "cutmix"}).mix == "cutmix", "the module is not needed"
    assert load_data_spec(str(recipe_file)).dataset == "fashion_mini"
    assert not (here / "imported").exists()
    assert load_recipe(several, allow_imports=True).mix == ["cutmix", NAME]
    assert (here / "imported").exists(), "the mark works"


def test_naming_the_method_is_consent(here: Path, recipe_file: Path) -> None:
    assert load_recipe(recipe_file, {"mix": NAME}).mix_settings["rate"] == 0.5
    assert (here / "imported").exists()


@pytest.mark.parametrize("words", [[], ["--help"], ["--list-recipes"]], ids=["show", "help", "list"])
def test_commands_import_nothing_that_a_recipe_names(here: Path, recipe_file: Path, words: list[str]) -> None:
    ended = train_here("--recipe", recipe_file, "--show-recipe", *words)
    if not words:
        assert ended.code == 2
        the_refusal(ended.err.splitlines())
    assert not (here / "imported").exists()
    allowed = train_here("--recipe", recipe_file, "--show-recipe", "--allow-imports", "--mix-rate", 0.25)
    assert (allowed.code, allowed.err) == (0, "")
    assert "mix_rate: 0.25" in allowed.out


def test_a_resumed_run_asks_for_consent(here: Path) -> None:
    ended = train_here(*TINY, "--output", here, "--mix", NAME, "--experiment", "a", "--epochs", 1)
    assert ended.code == 0, ended.err
    (here / "a" / "results.json").unlink()
    (here / "imported").unlink()
    for name in (NAME, "swap_rows"):  # as in a new process
        method_module._METHODS.pop(name)
    sys.modules.pop("my_methods")
    ended = train_here("--resume", here / "a", "--threads", 1)
    assert ended.code == 2
    the_refusal(ended.err.splitlines())
    assert not (here / "imported").exists()
    ended = train_here("--resume", here / "a", "--threads", 1, "--allow-imports")
    assert ended.code == 0, ended.err


def test_a_study_asks_for_consent(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = f"{{benchmarks: [fashion_mini], methods: [none], cases: {{own: {{mix: '{NAME}'}}}}}}"
    (here / "own.yaml").write_text(f"title: Own\ngroups: [{group}]\nseeds: 1\n")
    words = ["--study", "own.yaml", "--dry-run", "--output", here / "studies"]
    assert study_here(*words) == 2
    assert "--allow-imports" in capsys.readouterr().err
    assert not (here / "imported").exists()
    assert study_here(*words, "--", "--allow-imports") == 2
    assert "use --allow-imports before the --" in capsys.readouterr().err
    assert study_here(*words, "--allow-imports") == 0
    assert f"--mix {NAME}" in capsys.readouterr().out


def test_a_run_is_recorded_and_resumes_exactly(here: Path) -> None:
    words = [*TINY, "--output", here, "--mix", NAME, "--mix-rate", "5e-1", "--checkpoint-steps", 3]
    ended = train_here(*words, "--checkpoint-hist", 9, "--experiment", "whole")
    assert ended.code == 0, ended.err
    stored = yaml.safe_load((here / "whole" / "recipe.yaml").read_text())
    assert {key: stored[key] for key in ("mix", "mix_rate", "mix_prob", "mix_sites")} == {
        "mix": NAME,
        "mix_rate": 0.5,
        "mix_prob": 1.0,
        "mix_sites": None,
    }
    shutil.copytree(here / "whole", here / "again")
    (here / "again" / "results.json").unlink()
    for name in (NAME, "swap_rows"):  # as in a new process
        method_module._METHODS.pop(name)
    sys.modules.pop("my_methods")
    wrong = train_here("--resume", here / "again", "--mix", NAME, "--mix-rate", 0.4)
    assert "was started with mix_rate 0.5, got 0.4" in wrong.err
    ended = train_here("--resume", here / "again" / "checkpoints" / "step-00000003", "--threads", 1)
    assert ended.code == 0, ended.err
    assert digests(here / "again") == digests(here / "whole")
    bad = train_here(*TINY, "--output", here, "--experiment", "b", "--mix", NAME, "--mix-rate", 2)
    assert (bad.code, bad.err) == (2, "train.py: mix_rate must be a number in [0, 1], got 2\n")


def test_under_timms_script(here: Path, train_script: Path) -> None:
    start = [sys.executable, "-m", "timm_patchup.launch", train_script]
    first, second = here / "args.yaml", here / "again.yaml"
    done = run_command(*start, "--mix", NAME, "--mix-rate", "0.5", "--output", first)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1: MixTask" in done.stdout
    settings = yaml.safe_load(first.read_text())
    assert (settings["mix"], settings["mix_rate"]) == (NAME, 0.5)
    assert "allow_imports" not in settings
    (here / "imported").unlink()
    first.write_text(first.read_text() + "allow_imports: true\n")
    done = run_command(*start, "-c", first, "--output", second)
    assert done.returncode == 2
    the_refusal(done.stderr.splitlines())
    assert not (here / "imported").exists()
    done = run_command(*start, "-c", first, "--output", second, "--allow-imports")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(second.read_text()) == {**settings, "output": str(second)}
    done = run_command(*start, "--mix", "my_methods:Swap", "--output", second)
    assert done.returncode == 2
    assert "timm-patchup: mix: my_methods has no 'Swap'; did you mean SwapRows?" in done.stderr


def test_a_file_that_is_read_imports_nothing(here: Path) -> None:
    """An export from elsewhere: loading, describing and pushing it must not run code that its recipe names."""
    run = make_run(here / "run")
    text = (here / "run" / "recipe.yaml").read_text()
    named = re.sub(r"mix_.*\n", "", text).replace("mix: hard_patchup", f"mix: {NAME}\nmix_rate: 0.5\nmix_own: [1, 2]")
    (here / "run" / "recipe.yaml").write_text(named)
    recipe = read_resolved(here / "run" / "recipe.yaml")
    assert (recipe.mix, recipe.mix_settings) == (NAME, {"rate": 0.5, "own": [1, 2]})
    assert Recipe.from_dict(recipe.to_dict()) == stored_recipe(recipe.to_dict()) == recipe
    folder = export(run.path, here / "hub")
    assert json.loads((folder / "config.json").read_text())["pretrained_cfg"]["tag"].startswith("my_methods_swaprows_")
    assert load_with_recipe(str(folder)).recipe == recipe
    load(str(folder))
    load(str(run.path))
    assert (
        "`python -m timm_patchup.training --recipe recipe.yaml --allow-imports`" in (folder / "README.md").read_text()
    )
    with pytest.raises(UserError, match=r"^method 'my_methods:SwapRows' is from outside and was not imported: "):
        _ = recipe.method
    several = Recipe.from_dict({"mix": ["cutmix", NAME], "mix_settings": {NAME: {"rate": 0.5}}})
    assert several.mix_name == f"cutmix+{NAME}"
    assert not (here / "imported").exists()
    assert "my_methods" not in sys.modules
    load_recipe("fashion_mini_none", {"mix": NAME})
    assert (here / "imported").exists(), "the mark works"


def test_a_subclass_of_a_method_has_another_name(here: Path) -> None:
    own = "from dataclasses import dataclass\nfrom timm_patchup.methods.cutmix import CutMix\n"
    own += "@dataclass(frozen=True, kw_only=True)\nclass Mine(CutMix):\n    pass\n"
    (here / "my_methods.py").write_text(own)
    model = timm.create_model("test_resnet", num_classes=10)
    made: Method = create_mixer("my_methods:Mine", model).method
    assert made.name == "my_methods:Mine"
    assert method_module.method_type("cutmix").name == "cutmix"


def test_commands_in_the_documentation_name_the_example() -> None:
    assert f"--mix {NAME} --mix-rate 0.5" in PAGE
    assert f"--mix-settings {NAME}.rate=0.5" in PAGE
    assert (ROOT / "scripts" / "train.py").is_file()
