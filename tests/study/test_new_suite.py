"""A new suite can be used in a study by what it declares: nothing of studies, and no command, knows it by name."""

import ast
import csv
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.evaluating import evaluate_here
from tests.study.studying import study_here
from tests.support.paths import ROOT
from tests.support.training import train_here
from timm_patchup.errors import UserError
from timm_patchup.evaluation import suites
from timm_patchup.evaluation.context import EvalContext, Measurement
from timm_patchup.evaluation.suite import Option, OptionValues, Suite
from timm_patchup.report.numbers import Metric
from timm_patchup.study import load_study
from timm_patchup.study.definition import Evaluation

GAINS = ("1.0", "0.5")


def settings(context: EvalContext) -> dict[str, Any]:
    return {"offset": context.options["offset"]}


def measure(context: EvalContext) -> Measurement:
    values: dict[str, float | None] = {}
    count = 0
    for gain in GAINS:
        error, count = context.count_errors("darker", lambda images, rows, gain=gain: images * float(gain))
        values[gain] = 100.0 - error + context.options["offset"]  # a trace of the option
    return Measurement(values, count=count)


def check_options(options: OptionValues, models: object) -> None:
    if options["offset"] == 13:
        raise UserError("--offset 13 brings bad luck")


SUITE = Suite(
    name="darker",
    title="Darker images",
    measure=measure,
    settings=settings,
    values=GAINS,
    metrics=(Metric("light", "lumen", digits=1, higher_is_better=True, lines="gain"),),
    options=(
        Option(name="offset", help="added to pixels", type=int, default=0, low=0, in_study=True, study_default=7),
        Option(name="verbosity", help="not for studies", type=int, default=0),
    ),
    check_options=check_options,
)
STUDY = """
title: Methods in the dark
seeds: 1
reference: none
evaluation:
- {suite: darker, metric: light, values: ["1.0", "0.5"]}
groups:
- {benchmarks: [fashion_mini], methods: [none, mixup]}
"""


@pytest.fixture(autouse=True)
def _in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suites.SUITES, SUITE.name, SUITE)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "dark.yaml"
    path.write_text(STUDY)
    return path


def test_its_definition_has_the_declared_metric(study: Path) -> None:
    (part,) = load_study(str(study)).evaluation
    assert part == Evaluation("darker", SUITE.metrics[0], GAINS, "gain")


def test_it_is_trained_evaluated_and_shown(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of the dry run are run here: another process would not know the suite."""
    words = ["--study", study, "--output", tmp_path / "out", "--limit", 60, "--threads", 1]
    extra = ["--", "--epochs", 1, "--batch-size", 20]
    assert study_here(*words, "--dry-run", *extra) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        training, evaluation = (shlex.split(command) for command in line.split(" && "))
        assert evaluation[-2:] == ["--offset", "7"]
        assert train_here(*training[3:]).code == 0
        assert evaluate_here(*evaluation[3:]).code == 0
    assert study_here(*words, "--jobs", 0, *extra) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "out" / "dark"
    with (folder / "results.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "light"]
    assert [(row["method"], row["setting"], row["unit"], row["seeds_done"]) for row in rows] == [
        (method, gain, "lumen", "1") for method in ("none", "mixup") for gain in GAINS
    ]
    assert all(float(row["mean"]) >= 7 for row in rows), "with the default of studies"
    page = (folder / "results.md").read_text()
    assert "light, lumen" in page
    assert f" {float(rows[0]['mean']):.1f} " in page
    assert out.count("light, lumen") == 1
    with (folder / "comparisons.csv").open(encoding="utf-8") as file:
        (other,) = [row for row in csv.DictReader(file) if row["metric"] == "light" and row["value"] == "0.5"]
    assert other["wins"] == str(int(float(rows[1]["mean"]) > float(rows[3]["mean"]))), "higher is better"
    assert (folder / "results.png").read_bytes().startswith(b"\x89PNG")


def test_its_flag_is_checked_and_has_separate_reports(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--study", study, "--output", tmp_path, "--dry-run"]
    assert study_here(*words, "--offset", 3) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.endswith("--offset 3") and "/reports_offset_3/" in line for line in lines)
    for wrong, word in (("-1", "at least 0"), ("13", "bad luck"), ("x", "int")):
        assert study_here(*words, f"--offset={wrong}") == 2
        assert word in capsys.readouterr().err
    assert study_here("--study", "affine", "--dry-run", "--offset", 3) == 2
    assert "--offset is for suite darker" in capsys.readouterr().err
    assert study_here(*words, "--verbosity", 1) == 2
    assert "unknown flag --verbosity" in capsys.readouterr().err
    assert study_here("--study", study, "--output", tmp_path, "--jobs", 0, "--offset", 3) == 0
    assert "--offset 3\n" in (tmp_path / "dark" / "results.md").read_text()


def test_no_other_module_knows_a_suite_by_name() -> None:
    """Neither its name, nor a metric, nor an option; ``clean`` is the default of two calls."""
    known = [suite for suite in suites.SUITES.values() if suite is not SUITE]
    names = {suite.name for suite in known} | {metric.name for suite in known for metric in suite.metrics}
    names |= {word for suite in known for option in suite.options for word in (option.name, option.flag)}
    assert len(names) > 20
    package = ROOT / "timm_patchup"
    found = {
        (path.relative_to(package).as_posix(), node.value)
        for path in package.rglob("*.py")
        if "suites" not in path.parts and path.parent != package / "core"  # modules have activations, too
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert found == {("cli/evaluate.py", "clean"), ("hub/benchmarks.py", "clean")}
