"""A new suite needs its own file and an entry in the list: flags, checks, tables and figures follow from it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from timm_patchup.errors import UserError
from timm_patchup.evaluation import suites
from timm_patchup.evaluation.context import EvalContext, Measurement
from timm_patchup.evaluation.rows import ResultRow
from timm_patchup.evaluation.suite import Extra, Option, OptionValues, Suite
from timm_patchup.evaluation.suites import SUITES, option_values
from timm_patchup.report.charts import bars
from timm_patchup.report.figures import Figure
from timm_patchup.report.pages import Block

from .evaluating import evaluate_here, refused, trained


def settings(context: EvalContext) -> dict[str, Any]:
    return {"level": context.options["level"]}


def measure(context: EvalContext) -> Measurement:
    error, count = context.count_errors("brightness", lambda images, rows: images * context.options["level"] / 10)
    return Measurement({"error": error}, count=count)


def figure(rows: Sequence[ResultRow]) -> Figure:
    return bars(rows, ylabel="error, %")


def check_options(options: OptionValues, models: Sequence[str]) -> None:
    if options["reference"] not in (None, *models):
        raise UserError(f"--reference must be one of {', '.join(models)}, got {options['reference']}")


def extra(rows: Sequence[ResultRow], options: OptionValues) -> Extra:
    return Extra((Block("small", f"Compared with {options['reference']}."),), {"reference": options["reference"]})


SUITE = Suite(
    name="brightness",
    title="Darker images",
    unit="error, %",
    measure=measure,
    settings=settings,
    values=("error",),
    labels={"error": "top-1"},
    digits=1,
    figure=figure,
    packages=("no_such_package",),
    options=(
        Option(name="level", help="brightness in tenths (default: 5)", type=int, default=5, low=1, metavar="N"),
        Option(name="reference", help="model to compare with", metavar="NAME", replaces=("no_such_package",)),
    ),
    check_options=check_options,
    extra=extra,
)


@pytest.fixture(autouse=True)
def _in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suites.SUITES, SUITE.name, SUITE)


def test_the_suite_runs_with_its_options(tmp_path: Path) -> None:
    call = ["--model", trained(), "--suite", "clean,brightness", "--limit", 40, "--output", tmp_path]
    ended = evaluate_here(*call, "--reference", "none_0", "--level", 1)
    assert ended.code == 0, ended.err
    results = json.loads((tmp_path / "results.json").read_text())
    entry = results["suites"]["brightness"]["none_0"]
    assert entry["settings"]["level"] == 1
    assert entry["values"]["error"] > results["suites"]["clean"]["none_0"]["values"]["error"]
    assert results["reference"] == "none_0"
    text = (tmp_path / "report.md").read_text()
    table = f"## Darker images: error, %\n\n|  | none_0 |\n| --- | ---: |\n| top-1 | {entry['values']['error']:.1f} |\n"
    assert table in text
    assert "\n\nCompared with none_0.\n\n![brightness](brightness.png)\n" in text
    assert (tmp_path / "brightness.png").read_bytes().startswith(b"\x89PNG")
    again = evaluate_here(*call, "--reference", "none_0", "--level", 2)
    assert [": cached" in line for line in again.out.splitlines()[:2]] == [True, False], "another level, another result"


def test_wrong_calls_of_the_suite_are_refused(tmp_path: Path) -> None:
    call = ["--model", trained(), "--limit", 40, "--output", tmp_path / "report"]
    own = [*call, "--suite", "brightness"]
    assert "suite brightness needs no_such_package" in refused(*own)
    assert "--level must be at least 1, got 0" in refused(*own, "--level", 0)
    assert "invalid int value: 'x'" in refused(*own, "--level", "x")
    assert "--reference must be one of none_0, got other" in refused(*own, "--reference", "other")
    line = refused(*call, "--suite", "clean", "--reference", "none_0")
    assert "--reference belongs to suite brightness, but --suite is clean" in line
    assert evaluate_here(*call, "--suite", "clean", "--level", 3).code == 0, "an option with a default may be given"


def test_unknown_options_are_refused() -> None:
    assert option_values({"level": 2})["level"] == 2
    with pytest.raises(UserError, match=r"^unknown option 'levels'; did you mean level"):
        option_values({"levels": 2})


def test_help_lists_the_options_of_all_suites() -> None:
    page = evaluate_here("--help").out
    flags = [option.flag for suite in SUITES.values() for option in suite.options]
    assert {"--eps-space", "--baseline", "--corrupted", "--attack-steps", "--level", "--reference"} <= set(flags)
    for flag in flags:
        assert f"\n  {flag} " in page
    assert "brightness in tenths (default: 5)" in page
    assert len({option.name for suite in SUITES.values() for option in suite.options}) == len(flags)
