"""Definitions of studies: grids, recipes, the paper's numbers for their rows, and wrong files."""

from pathlib import Path

import pytest

from tests.study.studying import COUNTS, study_here
from timm_patchup import list_methods
from timm_patchup.cli.recipe_flags import given_keys
from timm_patchup.cli.study_commands import commands, parse_training_flags
from timm_patchup.cli.train import make_parser
from timm_patchup.errors import UserError
from timm_patchup.recipe import load_recipe
from timm_patchup.study import Condition, list_studies, load_study
from timm_patchup.study.collect import collect
from timm_patchup.study.definition import make_study
from timm_patchup.study.options import StudyOptions, run_keys, run_recipe
from timm_patchup.study.paper import PaperNumber, paper_number


def test_all_studies_are_counted() -> None:
    assert {name: len(load_study(name).runs()) for name in list_studies()} == COUNTS
    assert len(COUNTS) == 24


@pytest.mark.parametrize("name", COUNTS)
def test_every_run_and_its_command_have_the_same_recipe(name: str, tmp_path: Path) -> None:
    study, extra = load_study(name), ("--epochs", "2")
    options = StudyOptions(tmp_path / name, limit=200, overrides=parse_training_flags(extra))
    runs = study.runs(2)
    assert len({run.name for run in runs}) == len(runs)
    parser = make_parser()
    for run in runs[:: max(1, len(runs) // 6)]:
        recipe = run_recipe(run, options)
        assert (recipe.seed, recipe.limit, recipe.epochs) == (run.seed, 200, 2)
        first, *more = commands(study, run, options, extra)
        assert first[:2] == ["python", "-m"]
        given = parser.parse_args(first[3:])
        assert given.resume is True
        assert load_recipe(given.recipe, given_keys(given)) == recipe, "the command has the recipe of the study"
        assert (given.experiment, Path(given.output)) == (run.name, options.runs)
        assert len(more) == (1 if study.evaluation else 0)
    for run in study.runs(1):
        load_recipe(run.condition.recipe, run_keys(run, options))


def test_seeds_are_outermost() -> None:
    runs = load_study("fashion_mini").runs(2)
    assert [run.seed for run in runs] == [0] * 10 + [1] * 10
    assert sorted(run.condition.method for run in runs[:10]) == list_methods()


@pytest.mark.parametrize(
    "name", ["cifar", "svhn", "tiny_imagenet", "imagenet", "loss_terms", "sites", "affine", "attacks", "openmixup"]
)
def test_rows_of_a_table_have_the_papers_numbers(name: str) -> None:
    study = load_study(name)
    rows = collect(study, study.runs(1), StudyOptions(Path("nowhere")))
    compared = [row for row in rows if row.paper is not None]
    # Counted in the paper: every number in a table of errors has one of our rows.
    expected = {
        "cifar": 108,
        "svhn": 54,
        "tiny_imagenet": 54,
        "imagenet": 18,
        "loss_terms": 7,
        "sites": 15,
        "affine": 96 + 12,
        "attacks": 36,
        "openmixup": 5 * 3 + 5,
    }
    assert len(compared) == expected[name]


def test_papers_numbers_by_hand() -> None:
    def paper(name: str, benchmark: str, method: str, setting: str, metric: str) -> PaperNumber | None:
        return paper_number(load_study(name), Condition(benchmark, method, "", {}, {}), setting, metric)

    assert paper("loss_terms", "cifar100_wrn28_10", "soft_patchup", "objective=l2", "val_error") == PaperNumber(
        16.87, 0.34, "tab:loss_study"
    )
    assert paper("affine", "cifar100_wrn28_10", "cutmix", "scale 1.4", "affine_error") == PaperNumber(
        82.562, 0.575, "tab:affine_result"
    )
    in_percent = paper("attacks", "tiny_imagenet_wrn28_10", "cutmix", "ddn accuracy", "robust_accuracy")
    assert in_percent is not None
    assert (in_percent.mean, in_percent.std) == pytest.approx((17.1, 1.0))
    ratio = paper("training_time", "cifar10_preactresnet18", "puzzle_mix", "", "time_ratio")
    assert ratio == PaperNumber(53 / 18, None, "tab:tbl-running_time")
    assert paper("training_time", "cifar10_preactresnet18", "soft_patchup", "", "time_ratio") is None
    assert paper("fashion_mini", "fashion_mini", "none", "", "test_error") is None
    other = paper("openmixup", "cifar100_resnet18", "puzzle_mix", "800 epochs", "median_error")
    assert other == PaperNumber(pytest.approx(18.87), None, "openmixup:cifar100", "OpenMixup")  # type: ignore[arg-type]
    assert paper("openmixup", "cifar100_resnet18", "puzzle_mix", "800 epochs", "test_error") is None, "the last epoch"


def test_definitions_that_are_wrong() -> None:
    group = {"benchmarks": ["fashion_mini"], "methods": ["none"]}
    with pytest.raises(UserError, match="unknown key 'seed'"):
        make_study("s", {"title": "t", "groups": [group], "seed": 1})
    for keys, message in (
        ({"metrics": ["test_eror"]}, "test_eror is not a metric of a training, .*; did you mean test_error"),
        ({"metrics": ["affine_error"]}, "affine_error is not a metric of a training, .* belong to evaluation"),
        ({"metrics": ["time_ratio"]}, "time_ratio is not a metric of a training"),
        ({"metrics": ["test_error"], "measure": "timing"}, "not a metric of a timing, which has time_ratio;"),
    ):
        with pytest.raises(UserError, match=message):
            make_study("s", {"title": "t", "groups": [group], **keys})
    with pytest.raises(UserError, match="is defined twice"):
        make_study("s", {"title": "t", "groups": [group, group]})
    with pytest.raises(UserError, match="a title and groups"):
        make_study("s", {"title": "t"})
    with pytest.raises(UserError, match="did you mean fashion_mini"):
        load_study("fashion_min")
    with pytest.raises(UserError, match="a group needs methods"):
        make_study("s", {"title": "t", "groups": [{"benchmarks": ["fashion_mini"]}]})
    for wrong in ({"suite": "affine", "metric": "affine_error"}, {"suite": "affine", "values": ["scale 0.6"]}):
        with pytest.raises(UserError, match="a suite, a metric and a list of values"):
            make_study("s", {"title": "t", "groups": [group], "evaluation": [wrong]})


def test_an_unknown_table_is_refused_before_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its numbers are looked up when the first run has ended, which may take a day."""
    file = tmp_path / "wrong.yaml"
    file.write_text("title: t\npaper: [tab:tbl-cifer]\ngroups: [{benchmarks: [fashion_mini], methods: [none]}]\n")
    assert study_here("--study", file, "--output", tmp_path / "out", "--limit", 20, "--", "--epochs", 1) == 2
    assert "wrong: the paper has no table 'tab:tbl-cifer'; did you mean tab:tbl-cifar" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


EVALUATED = """
title: t
groups:
- {benchmarks: [fashion_mini], methods: [none]}
evaluation:
- {suite: SUITE, metric: METRIC, values: [VALUE]}
"""


@pytest.mark.parametrize(
    ("suite", "metric", "value", "message"),
    [
        ("afine", "affine_error", "scale 0.6", "wrong: unknown suite 'afine': choose from clean, affine"),
        ("affine", "affine_error", "scale .6", "wrong: suite affine has no value 'scale .6'; did you mean scale 0.6"),
        ("affine", "rho", "scale 0.6", "wrong: suite affine has no metric 'rho', only affine_error"),
        ("attacks", "robust_accuracy", "pgd accuracy", "wrong: suite attacks needs foolbox: pip install"),
    ],
)
def test_an_impossible_evaluation_is_refused_before_the_training(
    suite: str,
    metric: str,
    value: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from timm_patchup.evaluation import suites

    monkeypatch.setattr(suites, "find_spec", lambda name: None)
    file = tmp_path / "wrong.yaml"
    file.write_text(EVALUATED.replace("SUITE", suite).replace("METRIC", metric).replace("VALUE", value))
    assert study_here("--study", file, "--output", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    needs_a_package = suite == "attacks"
    dry = study_here("--study", file, "--output", tmp_path / "out", "--dry-run")
    assert dry == (0 if needs_a_package else 2), "a dry run is for other machines"
