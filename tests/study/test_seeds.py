"""Values of every seed as a file that outlives the runs, and the comparisons made from them."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.study.studying import finish, study_here
from timm_patchup.errors import UserError
from timm_patchup.recipe import load_recipe
from timm_patchup.study import Study, load_study
from timm_patchup.study.collect import collect, seed_rows
from timm_patchup.study.comparisons import Comparison, comparisons
from timm_patchup.study.csv_files import comparisons_csv
from timm_patchup.study.definition import make_study
from timm_patchup.study.options import StudyOptions
from timm_patchup.study.page import results_page
from timm_patchup.study.seeds import SeedRow, data_seed, read_seeds, recipe_digest, write_seeds

COMPARED = {
    "title": "t",
    "seeds": 6,
    "first_seed": 1,
    "metrics": ["test_error", "test_nll"],
    "reference": "hard_patchup",
    "comparisons": ["none"],
    "groups": [
        {"benchmarks": ["fashion_mini"], "methods": ["none", "cutmix", "hard_patchup"]},
        {"benchmarks": ["fashion_mini"], "methods": ["mixup"], "seeds": 2},
    ],
}


def finished(study: Study, options: StudyOptions, seeds: int | None = None) -> None:
    """Finish all runs: hard PatchUp has an error of 1 to 6, none is two points worse, cutmix level."""
    worse = {"none": 2.0, "cutmix": 0.0, "mixup": -1.0, "hard_patchup": 0.0}
    for run in study.runs(seeds):
        error = run.seed + worse[run.condition.method]
        finish(options.folder, run, options, error=error, loss=error / 10)


def page(study: Study, options: StudyOptions, found: Sequence[Comparison]) -> str:
    return results_page(study, collect(study, study.runs(), options), found, command="c", failed=[])


def test_seeds_of_a_study_and_of_a_group() -> None:
    study = make_study("s", COMPARED)
    by_method = {c.method: [run.seed for run in study.runs() if run.condition is c] for c in study.conditions}
    assert by_method == {method: [1, 2] if method == "mixup" else [1, 2, 3, 4, 5, 6] for method in by_method}
    assert len(by_method) == 4
    more = [run.seed for run in study.runs(8) if run.condition.method == "none"]
    assert more == list(range(1, 9)), "a finished study is extended"
    assert len(study.runs(1)) == 4


def test_rows_count_as_done_when_the_runs_are_gone(tmp_path: Path) -> None:
    study, file = make_study("s", COMPARED), tmp_path / "seeds.csv"
    options = StudyOptions(tmp_path / "runs")
    finished(study, options)
    made = {run.name: 1.234 for run in study.runs()[:3]}
    rows = seed_rows(study, study.runs(), options, {}, made)
    write_seeds(file, rows.values())
    again = read_seeds(file)
    assert {key: row.values for key, row in again.items()} == {key: row.values for key, row in rows.items()}
    costs = [row.cpu_minutes for row in again.values()]
    assert costs.count(1.23) == 3
    assert costs.count(None) == len(study.runs()) - 3
    assert all(bool(row.commit) == (row.cpu_minutes is not None) for row in again.values())
    gone = StudyOptions(tmp_path / "gone", finished=again)
    assert [(r.by_seed, r.partial) for r in collect(study, study.runs(), gone)] == [
        (r.by_seed, r.partial) for r in collect(study, study.runs(), options)
    ]
    write_seeds(tmp_path / "second.csv", seed_rows(study, study.runs(), gone, again, {}).values())
    assert (tmp_path / "second.csv").read_bytes() == file.read_bytes()


def test_a_study_goes_on_from_a_file_of_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, file = load_study("fashion_mini"), tmp_path / "rows.csv"
    options = StudyOptions(tmp_path / "elsewhere")
    for run in study.runs(1):
        finish(options.folder, run, options, error=15.0)
    write_seeds(file, seed_rows(study, study.runs(1), options, {}, {}).values())
    words = ["--study", "fashion_mini", "--output", tmp_path / "out", "--seeds-from", file]
    assert study_here(*words, "--seeds", 2, "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert all("--seed 1 " in line for line in lines)
    assert study_here(*words, "--jobs", 0) == 0
    text = (tmp_path / "out" / "fashion_mini" / "results.md").read_text()
    assert "10 of 93 runs are done" in text
    assert len(read_seeds(file)) == 10, "kept"
    assert study_here(*words, "--jobs", 0, "--", "--epochs", 2) == 2, "other flags, other runs"
    assert "recipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("seed,", "sead,", 1),
        lambda text: text.replace(",1,", ",one,", 1),
        lambda text: text + text.splitlines()[-1] + "\n",
        lambda text: text.splitlines()[0] + "\na,b\n",
        lambda text: text.replace("1.1", "nan", 1),
        lambda text: "",
    ],
)
def test_a_damaged_file_of_seeds_is_refused(damage: object, tmp_path: Path) -> None:
    place, file = ("fashion_mini", "none", ""), tmp_path / "seeds.csv"
    write_seeds(file, [SeedRow(place, seed, None, "abc", values={"test_error": 0.1 + seed}) for seed in (1, 2)])
    assert len(read_seeds(file)) == 2
    assert callable(damage)
    file.write_text(damage(file.read_text()))
    with pytest.raises(UserError, match="damaged"):
        read_seeds(file)


def test_digest_of_a_recipe_has_what_affects_results() -> None:
    recipe = load_recipe("fashion_mini_hard_patchup")
    digest = recipe_digest(recipe)
    same = {"seed": 7, "workers": 2, "log_interval": 5}
    assert recipe_digest(load_recipe("fashion_mini_hard_patchup", same)) == digest
    for name, value in {"epochs": 9, "mix_gamma": 0.4, "mix_objective": "l2", "lr": 0.2}.items():
        assert recipe_digest(load_recipe("fashion_mini_hard_patchup", {name: value})) != digest


def test_seed_of_the_images() -> None:
    assert data_seed(load_recipe("fashion_mini_none", {"seed": 3})) is None, "all images are used"
    assert data_seed(load_recipe("cifar10_scarce_none", {"seed": 3})) == 0
    assert data_seed(load_recipe("cifar10_scarce_none", {"seed": 3, "split_by_seed": True})) == 3


def test_comparisons_by_hand(tmp_path: Path) -> None:
    study, options = make_study("s", COMPARED), StudyOptions(tmp_path)
    finished(study, options)
    found = {
        (one.other.metric.name, one.other.condition.method): one
        for one in comparisons(study, collect(study, study.runs(), options))
    }
    assert len(found) == 2 * 3
    none = found["test_error", "none"]
    assert (none.difference.pairs, none.difference.mean, none.difference.wins) == (6, -2.0, 6)
    assert (none.difference.p, none.corrected) == (2 / 64, 2 / 64), "one comparison needs no correction"
    assert found["test_error", "cutmix"].corrected is None, "not declared"
    assert found["test_nll", "none"].corrected is None, "another metric than the declared"
    assert (found["test_error", "mixup"].difference.pairs, found["test_error", "mixup"].difference.wins) == (2, 0)
    text = " ".join(page(study, options, list(found.values())).split())
    assert "| test_error, % | none | 6 | -2.00 (-2.00 to -2.00) | 6 (54% to 100%) | 0.0312 | 0.0312 |" in text
    lines = list(csv.DictReader(comparisons_csv(list(found.values())).splitlines()))
    assert [line["p_holm"] for line in lines].count("") == 5
    assert float(lines[0]["difference"]) == -2.0


def test_nothing_is_tested_before_all_declared_seeds_are_there(tmp_path: Path) -> None:
    study, options = make_study("s", COMPARED), StudyOptions(tmp_path)
    finished(study, options, 5)
    found = comparisons(study, collect(study, study.runs(), options))
    assert found
    assert all(one.corrected is None for one in found)
    text = page(study, options, found)
    assert "| p " not in text
    assert "6 seeds" in text
    screening = replace(study, comparisons=())
    assert "decide nothing" in page(screening, options, found)


def test_more_seeds_than_declared_are_all_tested(tmp_path: Path) -> None:
    study, options = make_study("s", COMPARED), StudyOptions(tmp_path)
    finished(study, options, 8)
    (none,) = [one for one in comparisons(study, collect(study, study.runs(8), options)) if one.corrected is not None]
    assert none.corrected == 2 / 256


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"seeds": 5}, "6 seeds"),
        ({"reference": None}, "reference"),
        ({"comparisons": ["nobody"]}, "nobody"),
        ({"comparisons": ["hard_patchup"]}, "itself"),
        ({"comparisons": ["mixup"]}, "2"),
        ({"first_seed": -1}, "first_seed"),
    ],
)
def test_comparisons_that_cannot_be_decided_are_refused(keys: dict[str, object], word: str) -> None:
    with pytest.raises(UserError, match=word):
        make_study("s", {**COMPARED, **keys})
