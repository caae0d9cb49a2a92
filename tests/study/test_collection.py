"""Tables of finished runs: means, deviations, differences, figures."""

import csv
import json
from pathlib import Path

import pytest

from tests.study.studying import finish
from timm_patchup.errors import UserError
from timm_patchup.evaluation.suites import SUITES
from timm_patchup.recipe import load_recipe
from timm_patchup.runs.folder import RunFolder
from timm_patchup.study import load_study
from timm_patchup.study.collect import StudyRow, collect, is_done, refuse_other_runs
from timm_patchup.study.csv_files import results_csv
from timm_patchup.study.figures import plot_points
from timm_patchup.study.options import StudyOptions
from timm_patchup.study.page import results_page
from timm_patchup.study.paper import PaperNumber
from timm_patchup.training.infer import resolve


def test_mean_deviation_and_difference_by_hand(tmp_path: Path) -> None:
    study, options = load_study("sites"), StudyOptions(tmp_path)
    runs = study.runs(3)
    stem = [run for run in runs if run.condition.setting == "layer 1"]
    for run, error in zip(stem, (17.0, 18.0, 22.0)):
        finish(tmp_path, run, options, error=error, loss=0.5, val=error + 1)
    random_layer = next(run for run in runs if run.condition.setting == "random layer")
    finish(tmp_path, random_layer, options, error=16.0)
    rows = {(row.setting, row.metric.name): row for row in collect(study, study.runs(3), options)}
    first = rows[("layer 1", "test_error")]
    assert first.ours.values == (17.0, 18.0, 22.0)
    assert first.difference == pytest.approx(19.0 - 17.86)
    assert not first.partial
    assert rows[("layer 1", "val_error")].ours.mean == pytest.approx(20.0), "of the best epoch, not the last"
    assert rows[("layer 1", "test_nll")].difference == pytest.approx(0.5 - 0.73)
    one = rows[("random layer", "test_error")]
    assert (one.ours.values, one.planned, one.partial) == ((16.0,), 3, True)
    none = rows[("layer 2", "test_error")]
    assert (none.ours.values, none.difference) == ((), None)
    text = " ".join(results_page(study, list(rows.values()), [], command="c", failed=["sites-x"]).split())
    assert "4 of 15 runs are done" in text
    assert "| 1 of 3, partial | 16.00" in text
    assert "19.00 (12.43 to 25.57) | 17.86 ± 0.16 | +1.14" in text, "4.303 x 2.65 / sqrt(3)"
    assert "- sites-x: see logs/sites-x.log" in text
    assert str(tmp_path) not in text
    table = list(csv.DictReader(results_csv(list(rows.values())).splitlines()))
    assert len(table) == 15
    assert float(table[1]["difference"]) == pytest.approx(1.14)
    assert (table[4]["mean"], table[4]["paper_mean"], table[4]["paper_table"]) == ("", "21.42", "tab:layer_study_k")


def test_without_numbers_of_the_paper_all_metrics_are_in_one_line(tmp_path: Path) -> None:
    study, options = load_study("fashion_mini"), StudyOptions(tmp_path)
    for run, error in zip([run for run in study.runs(3) if run.condition.method == "cutmix"], (12.0, 13.0, 14.0)):
        finish(tmp_path, run, options, error=error, loss=error / 10)
    text = results_page(study, collect(study, study.runs(3), options), [], command="c", failed=[])
    assert "paper" not in text
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == ["benchmark", "method", "seeds", "test_error, %", "test_nll, nats"]
    assert len(lines) == 2 + 10
    assert lines[2] == ["fashion_mini", "none", "0 of 3, partial", "-", "-"]
    assert lines[5] == ["fashion_mini", "cutmix", "3", "13.00 (10.52 to 15.48)", "1.300 (1.052 to 1.548)"]


def test_values_of_an_evaluation(tmp_path: Path) -> None:
    study, options = load_study("affine"), StudyOptions(tmp_path)
    run = study.runs(1)[0]
    finish(tmp_path, run, options, error=20.0)
    assert not is_done(study, run, options), "the evaluation is left"
    options.report(run).mkdir(parents=True)
    values: dict[str, object] = {"rotate +-20": 36.45, "scale 0.6": None}
    entry = {"values": values, "settings": {"resampling": "nearest"}, "seed": 0, "count": 10, "curves": {}}

    def write(entry: dict[str, object]) -> None:
        stored = {"data": {}, "models": {}, "suites": {"affine": {run.name: entry}}}
        (options.report(run) / "results.json").write_text(json.dumps(stored))

    write(entry)
    assert not is_done(study, run, options), "the page is left"
    (options.report(run) / "report.html").write_text("")
    write(entry | {"settings": {"interpolation": "bilinear, black outside"}})
    assert not is_done(study, run, options), "measured when a scale of 0.6 enlarged the image"
    write(entry)
    assert is_done(study, run, options)
    rows = {row.setting: row for row in collect(study, study.runs(1), options) if row.condition == run.condition}
    assert rows["rotate +-20"].difference == pytest.approx(36.45 - 37.45)
    assert rows["scale 0.6"].by_seed == {}
    assert rows[""].metric.name == "test_error"


@pytest.mark.parametrize(
    ("suite", "today", "before"),
    [
        ("affine", {"resampling": "nearest"}, {"interpolation": "bilinear"}),
        ("fgsm", {"eps_space": "normalised"}, {"eps_space": "pixels"}),
        ("attacks", {"accuracy": "foolbox: right with the perturbation found"}, {"accuracy": "distances"}),
    ],
)
def test_what_was_measured_in_another_way_is_measured_again(
    suite: str, today: dict[str, str], before: dict[str, str]
) -> None:
    is_current, options = SUITES[suite].is_current, StudyOptions(Path()).of_suites
    assert is_current is not None
    assert is_current(today, options)
    assert not is_current(before, options)
    assert not is_current({}, options)


def test_suites_that_know_earlier_editions() -> None:
    assert {name for name, suite in SUITES.items() if suite.is_current} == {"affine", "fgsm", "attacks"}


def test_numbers_of_another_source_are_shown_as_its_own(tmp_path: Path) -> None:
    study, options = load_study("openmixup"), StudyOptions(tmp_path)
    run = next(run for run in study.runs() if run.name == "cifar100_resnet18_cutmix-800_epochs-seed0")
    finish(tmp_path, run, options, error=23.0)
    folder = RunFolder(tmp_path / "runs" / run.name)
    results = folder.results()
    median = {"epochs": [799, 800], "error": 22.0, "top1": 78.0, "top5": 94.0, "loss": 0.9}
    folder.write_results(results | {"median": median})
    rows = collect(study, study.runs(1), options)
    (own,) = [row for row in rows if row.by_seed and row.metric.name == "median_error"]
    assert (own.ours.mean, own.difference) == (22.0, pytest.approx(22.0 - (100 - 78.17)))
    (last,) = [row for row in rows if row.by_seed and row.metric.name == "test_error"]
    assert (last.ours.mean, last.paper) == (23.0, None), "its tables have no other number"
    text = results_page(study, rows, [], command="c", failed=[])
    assert "| OpenMixup | difference |" in " ".join(text.split())
    assert "Difference: ours - OpenMixup." in text
    assert "OpenMixup: openmixup:cifar100 (https://github.com/Westlake-AI/openmixup/" in text
    assert "paper" not in text.casefold()
    folder.write_results(results | {"median": {"error": 22.0}})
    assert not [row for row in collect(study, study.runs(1), options) if row.by_seed], "a damaged file is left out"


def test_top5_is_an_error(tmp_path: Path) -> None:
    study, options = load_study("imagenet"), StudyOptions(tmp_path)
    run = next(run for run in study.runs() if run.condition.method == "hard_patchup")
    finish(tmp_path, run, options, error=21.0)
    rows = [row for row in collect(study, study.runs(1), options) if row.condition.method == "hard_patchup"]
    assert [row.difference for row in rows] == pytest.approx([21.0 - 20.75, 10.0 - 5.29])


def test_runs_with_other_flags_are_refused(tmp_path: Path) -> None:
    study = load_study("fashion_mini")
    run = study.runs(1)[0]
    finish(tmp_path, run, StudyOptions(tmp_path, limit=100), error=1.0)
    refuse_other_runs(study, [run], StudyOptions(tmp_path, limit=100))
    with pytest.raises(UserError, match="was run with limit 100, got None"):
        refuse_other_runs(study, [run], StudyOptions(tmp_path))


def test_runs_on_images_of_other_classes_can_be_resumed(tmp_path: Path) -> None:
    """Such a run records the name of its folder as its dataset."""
    study = load_study("fashion_mini")
    run = study.runs(1)[0]
    for folder in ("photos", "other"):
        (tmp_path / folder).mkdir()
    own = {"data_dir": tmp_path / "photos", "overrides": {"num_classes": 3}}
    recorded = resolve(load_recipe(run.condition.recipe, {"num_classes": 3}), tmp_path / "photos").recipe
    RunFolder(tmp_path / "runs" / run.name).begin(recorded, run.name)
    refuse_other_runs(study, [run], StudyOptions(tmp_path, **own))
    with pytest.raises(UserError, match="was run with dataset 'photos', got 'other'"):
        refuse_other_runs(study, [run], StudyOptions(tmp_path, **{**own, "data_dir": tmp_path / "other"}))


def test_figures_with_and_without_values() -> None:
    study = load_study("loss_terms")
    condition, metric = study.conditions[0], study.plotted
    for row, bars in (
        (StudyRow(condition, "", metric, {}, 5, None), []),
        (StudyRow(condition, "", metric, {0: 1.0, 1: 2.0}, 2, PaperNumber(1.0, 0.2, "t")), [1.5, 1.0]),
    ):
        (axes,) = plot_points(study, [row]).axes
        assert [bar[0].get_xdata()[0] for bar in axes.containers] == bars
