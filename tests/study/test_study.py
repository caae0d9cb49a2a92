"""Studies: their grids counted by hand, their commands read back, and rows from made-up results."""

import csv
import json
import runpy
import shlex
from pathlib import Path

import pytest

from tests.study.studying import finish, study_here
from timm_patchup.methods import list_methods
from timm_patchup.recipe import RecipeError, load_recipe
from timm_patchup.recipe.flags import given_keys
from timm_patchup.study import Condition, list_studies, load_study
from timm_patchup.study.cli import devices
from timm_patchup.study.collect import Row, check_finished, collect, is_done
from timm_patchup.study.commands import Options, commands, data_flags, flags, run_keys, run_recipe
from timm_patchup.study.definition import make_study
from timm_patchup.study.paper import PaperNumber, paper_number
from timm_patchup.study.tables import comma_separated, draw, markdown, number
from timm_patchup.training.cli import make_parser

# benchmarks x methods x settings x seeds
COUNTS = {
    "affine": 2 * 6 * 5,
    "alpha": (5 + 4 + 3 * 3) * 3,
    "attacks": 9 * 5,
    "cifar": 6 * 9 * 5,
    "cifar10_scarce": 10 * 3,
    "corruptions": 3 * 7 * 5,
    "fashion_mini": 10 * 3,
    "gamma_block": (4 * 4 + 5 * 4 + 5) * 3,
    "imagenet": 9,
    "loss_terms": (1 + 2 * 3) * 5,
    "sites": 5 * 5,
    "svhn": 3 * 9 * 5,
    "tiny_imagenet": 3 * 9 * 5,
    "training_time": 7 * 3 * 3,
}


# Definitions


def test_all_studies_are_counted() -> None:
    assert {name: len(load_study(name).runs()) for name in list_studies()} == COUNTS
    assert len(COUNTS) == 14


@pytest.mark.parametrize("name", COUNTS)
def test_every_run_is_a_recipe_and_its_command_says_so(name: str, tmp_path: Path) -> None:
    study, options = load_study(name), Options(tmp_path / name, limit=200, extra=("--epochs", "2"))
    runs = study.runs(2)
    assert len({run.name for run in runs}) == len(runs)
    parser = make_parser()
    for run in runs[:: max(1, len(runs) // 6)]:
        recipe = run_recipe(run, options)
        assert (recipe.seed, recipe.limit, recipe.epochs) == (run.seed, 200, 2)
        first, *more = commands(study, run, options)
        assert first[:2] == ["python", "-m"]
        given = parser.parse_args(first[3:])
        assert given.resume is True
        assert load_recipe(given.recipe, given_keys(given)) == recipe, "the command says what the study means"
        assert (given.experiment, Path(given.output)) == (run.name, options.runs)
        assert len(more) == (1 if study.evaluation else 0)
    for run in study.runs(1):
        load_recipe(run.condition.recipe, run_keys(run, options))


def test_seeds_are_outermost() -> None:
    runs = load_study("fashion_mini").runs(2)
    assert [run.seed for run in runs] == [0] * 10 + [1] * 10
    assert sorted(run.condition.method for run in runs[:10]) == list_methods()


@pytest.mark.parametrize(
    "name", ["cifar", "svhn", "tiny_imagenet", "imagenet", "loss_terms", "sites", "affine", "attacks"]
)
def test_rows_of_a_table_have_the_papers_numbers(name: str) -> None:
    study = load_study(name)
    rows = collect(study, 1, Options(Path("nowhere")))
    compared = [row for row in rows if row.paper is not None]
    # Counted from the tables: every number of a table of errors is beside one of our rows.
    expected = {
        "cifar": 108,
        "svhn": 54,
        "tiny_imagenet": 54,
        "imagenet": 18,
        "loss_terms": 7,
        "sites": 15,
        "affine": 96 + 12,
        "attacks": 36,
    }
    assert len(compared) == expected[name]


def test_papers_numbers_by_hand() -> None:
    def paper(name: str, benchmark: str, method: str, setting: str, metric: str) -> PaperNumber | None:
        return paper_number(load_study(name), Condition(benchmark, method, "", {}), setting, metric)

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


def test_definitions_that_are_wrong() -> None:
    group = {"benchmarks": ["fashion_mini"], "methods": ["none"]}
    with pytest.raises(RecipeError, match="unknown key 'seed'"):
        make_study("s", {"title": "t", "groups": [group], "seed": 1})
    with pytest.raises(RecipeError, match="unknown metric 'eror'"):
        make_study("s", {"title": "t", "groups": [group], "metrics": ["eror"]})
    with pytest.raises(RecipeError, match="comes twice"):
        make_study("s", {"title": "t", "groups": [group, group]})
    with pytest.raises(RecipeError, match="a title and groups"):
        make_study("s", {"title": "t"})
    with pytest.raises(RecipeError, match="did you mean fashion_mini"):
        load_study("fashion_min")
    with pytest.raises(RecipeError, match="a group has no methods"):
        make_study("s", {"title": "t", "groups": [{"benchmarks": ["fashion_mini"]}]})
    for wrong in ({"suite": "affine", "metric": "affine_error"}, {"suite": "affine", "values": ["scale 0.6"]}):
        with pytest.raises(RecipeError, match="a suite, a metric and a list of values"):
            make_study("s", {"title": "t", "groups": [group], "evaluation": [wrong]})


EVALUATED = """
title: t
groups:
- {benchmarks: [fashion_mini], methods: [none]}
evaluation:
- {suite: SUITE, metric: affine_error, values: [VALUE]}
"""


@pytest.mark.parametrize(
    ("suite", "value", "complaint"),
    [
        ("afine", "scale 0.6", "wrong: --suite: unknown suite 'afine', choose from clean, affine"),
        ("affine", "scale .6", "wrong: suite affine has no value 'scale .6'; did you mean scale 0.6"),
        ("attacks", "pgd accuracy", "wrong: suite attacks needs foolbox: pip install 'timm-patchup[robustness]'"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused_before_the_training(
    suite: str,
    value: str,
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from timm_patchup.evaluation import suites

    monkeypatch.setattr(suites, "find_spec", lambda name: None)
    file = tmp_path / "wrong.yaml"
    file.write_text(EVALUATED.replace("SUITE", suite).replace("VALUE", value))
    assert study_here("--study", file, "--output", tmp_path / "out") == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    needs_a_package = suite == "attacks"
    dry = study_here("--study", file, "--output", tmp_path / "out", "--dry-run")
    assert dry == (0 if needs_a_package else 2), "a dry run is for other machines"


# Commands


def test_flags_are_words_of_the_command() -> None:
    keys = {"mix_sites": ["stem"], "mix_block_size": [7, 5], "amp": True, "hflip": 0.0, "model_ema": False, "aa": None}
    assert flags({**keys, "model_kwargs": {"stem_stride": 2}}) == shlex.split(
        "--mix-sites stem --mix-block-size 7 5 --amp --hflip 0.0 --no-model-ema --aa none --model-kwargs stem_stride=2"
    )


def test_evaluation_follows_the_training() -> None:
    study = load_study("attacks")
    run = study.runs(1)[0]
    _, evaluation = commands(study, run, Options(Path("studies/attacks"), limit=50, threads=2))
    assert shlex.join(evaluation) == (
        "python -m timm_patchup.evaluation --model studies/attacks/runs/tiny_imagenet_wrn28_10_none-seed0 "
        "--suite attacks,fgsm --output studies/attacks/reports/tiny_imagenet_wrn28_10_none-seed0 --limit 50 --threads 2"
    )


def test_corrupted_files_are_handed_on_and_have_reports_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    study = load_study("corruptions")
    run = study.runs(1)[0]
    made, ready = Options(tmp_path), Options(tmp_path, corrupted=f"{tmp_path}/files/Tiny-C/")
    assert "--corrupted" not in commands(study, run, made)[1]
    assert commands(study, run, ready)[1][-2:] == ["--corrupted", f"{tmp_path}/files/Tiny-C/"]
    others = [Options(tmp_path, corrupted=where) for where in (f"{tmp_path}/Tiny-C", "hfds/a/Tiny-C", "hfds/b/Tiny-C")]
    assert len({options.report(run) for options in (made, ready, *others)}) == 5, "none is taken for another"
    assert ready.reports.name.startswith("reports_Tiny-C-")

    words = ["--seeds", 1, "--output", tmp_path / "out", "--dry-run", "--corrupted"]
    assert study_here("--study", "corruptions", *words, tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 21
    assert all(line.endswith(f"--corrupted {tmp_path}") for line in lines)
    assert study_here("--study", "affine", *words, tmp_path) == 2
    assert "--corrupted is for suite corruptions, which affine does not have" in capsys.readouterr().err
    assert study_here("--study", "corruptions", *words, tmp_path / "none") == 2
    assert "none: no such folder; a data set of the Hub is hfds/OWNER/NAME" in capsys.readouterr().err


def test_local_data(tmp_path: Path) -> None:
    cifar, scarce = load_study("cifar"), load_study("cifar10_scarce")
    assert data_flags(scarce.runs(1)[0], scarce, tmp_path) == ["--data-dir", tmp_path.as_posix()]
    with pytest.raises(RecipeError, match="folders cifar10, cifar100 in it; no cifar10"):
        data_flags(cifar.runs(1)[0], cifar, tmp_path)
    (tmp_path / "cifar10").mkdir()
    for study in (cifar, scarce):
        assert data_flags(study.runs(1)[0], study, tmp_path) == ["--data-dir", (tmp_path / "cifar10").as_posix()]


def test_dry_run_prints_what_is_left(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert study_here("--study", "affine", "--seeds", 1, "--output", output, "--dry-run", "--", "--amp") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    for line in lines:
        training, evaluation = (shlex.split(part) for part in line.split(" && "))
        assert make_parser().parse_args(training[3:]).amp is True
        assert evaluation[:3] == ["python", "-m", "timm_patchup.evaluation"]
    assert not output.exists(), "a dry run writes nothing"


def test_calls_that_are_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cases: list[tuple[list[object], str]] = [
        ([], "--study is missing"),
        (["--study", "cifra"], "did you mean cifar"),
        (["--study", "none.yaml"], "no such file"),
        (["--study", "cifar", "--seeds", 0], "--seeds must be at least 1"),
        (["--study", "cifar", "--jobs", -1], "--jobs must be at least 0"),
        (["--study", "cifar", "--data-dir", tmp_path / "no"], "no such folder"),
        (["--study", "cifar", "--", "--seed", 3], "--seed after -- is the study's own: use --seeds"),
        (["--study", "cifar", "--", "--epoch", 3], "unknown flag --epoch"),
        (["--study", "cifar", "--", "--lr", "-1"], "lr must be a number"),
    ]
    for words, message in cases:
        assert study_here(*words, "--output", tmp_path) == 2 if "--" not in words else study_here(*words) == 2
        assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_list_of_studies(capsys: pytest.CaptureFixture[str]) -> None:
    assert study_here("--list-studies") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(COUNTS)


def test_the_script_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["study.py", "--study", "imagenet", "--dry-run"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "study.py"), run_name="__main__")
    assert caught.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) == 9


def test_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices(1) == []
    assert devices(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert devices(4) == ["5", "7"]


# Collection


def test_mean_deviation_and_difference_by_hand(tmp_path: Path) -> None:
    study, options = load_study("sites"), Options(tmp_path)
    runs = study.runs(3)
    stem = [run for run in runs if run.condition.setting == "layer 1"]
    for run, error in zip(stem, (17.0, 18.0, 22.0)):
        finish(tmp_path, run, options, error=error, loss=0.5, val=error + 1)
    random_layer = next(run for run in runs if run.condition.setting == "random layer")
    finish(tmp_path, random_layer, options, error=16.0)
    rows = {(row.setting, row.metric): row for row in collect(study, 3, options)}
    first = rows[("layer 1", "test_error")]
    assert first.values == (17.0, 18.0, 22.0)
    assert first.mean == pytest.approx(19.0)
    assert first.std == pytest.approx(7**0.5), "(4 + 1 + 9) / 2"
    assert first.difference == pytest.approx(19.0 - 17.86)
    assert not first.partial
    assert rows[("layer 1", "val_error")].mean == pytest.approx(20.0), "of the best epoch, not the last"
    assert rows[("layer 1", "test_nll")].difference == pytest.approx(0.5 - 0.73)
    one = rows[("random layer", "test_error")]
    assert (one.mean, one.std, len(one.values), one.planned, one.partial) == (16.0, None, 1, 3, True)
    none = rows[("layer 2", "test_error")]
    assert (none.mean, none.std, none.difference) == (None, None, None)
    text = " ".join(markdown(study, list(rows.values()), command="c", failed=["sites-x"]).split())
    assert "4 of 15 runs are done" in text
    assert "| 1 of 3, partial | 16.00" in text
    assert "19.00 ± 2.65 | 17.86 ± 0.16 | +1.14" in text
    assert "- sites-x: see logs/sites-x.log" in text
    assert str(tmp_path) not in text
    table = list(csv.DictReader(comma_separated(list(rows.values())).splitlines()))
    assert len(table) == 15
    assert float(table[1]["difference"]) == pytest.approx(1.14)
    assert (table[4]["mean"], table[4]["paper_mean"], table[4]["paper_table"]) == ("", "21.42", "tab:layer_study_k")


def test_without_numbers_of_the_paper_metrics_stand_side_by_side(tmp_path: Path) -> None:
    study, options = load_study("fashion_mini"), Options(tmp_path)
    for run, error in zip([run for run in study.runs(3) if run.condition.method == "cutmix"], (12.0, 13.0, 14.0)):
        finish(tmp_path, run, options, error=error, loss=error / 10)
    text = markdown(study, collect(study, 3, options), command="c", failed=[])
    assert "paper" not in text
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == ["benchmark", "method", "seeds", "test_error, %", "test_nll, nats"]
    assert len(lines) == 2 + 10
    assert lines[2] == ["fashion_mini", "none", "0 of 3, partial", "-", "-"]
    assert lines[5] == ["fashion_mini", "cutmix", "3", "13.00 ± 1.00", "1.300 ± 0.100"]


def test_values_of_an_evaluation(tmp_path: Path) -> None:
    study, options = load_study("affine"), Options(tmp_path)
    run = study.runs(1)[0]
    finish(tmp_path, run, options, error=20.0)
    assert not is_done(study, run, options), "the evaluation is left"
    options.report(run).mkdir(parents=True)
    entry = {run.name: {"values": {"rotate +-20": 36.45, "scale 0.6": None}}}
    (options.report(run) / "results.json").write_text(json.dumps({"suites": {"affine": entry}}))
    assert not is_done(study, run, options), "the page is left"
    (options.report(run) / "report.html").write_text("")
    assert is_done(study, run, options)
    rows = {row.setting: row for row in collect(study, 1, options) if row.condition == run.condition}
    assert rows["rotate +-20"].difference == pytest.approx(36.45 - 37.45)
    assert rows["scale 0.6"].values == ()
    assert rows[""].metric == "test_error"


def test_top5_is_an_error(tmp_path: Path) -> None:
    study, options = load_study("imagenet"), Options(tmp_path)
    run = next(run for run in study.runs() if run.condition.method == "hard_patchup")
    finish(tmp_path, run, options, error=21.0)
    rows = [row for row in collect(study, 1, options) if row.condition.method == "hard_patchup"]
    assert [row.difference for row in rows] == pytest.approx([21.0 - 20.75, 10.0 - 5.29])


def test_runs_of_other_flags_are_refused(tmp_path: Path) -> None:
    study = load_study("fashion_mini")
    run = study.runs(1)[0]
    finish(tmp_path, run, Options(tmp_path, limit=100), error=1.0)
    check_finished([run], Options(tmp_path, limit=100))
    with pytest.raises(RecipeError, match="was run with limit 100, not None"):
        check_finished([run], Options(tmp_path))


def test_numbers_as_text() -> None:
    assert [number(None, None, 2), number(1.0, None, 2), number(1.234, 0.1, 2)] == ["-", "1.00", "1.23 ± 0.10"]


def test_picture_of_nothing_and_of_something(tmp_path: Path) -> None:
    study = load_study("loss_terms")
    condition = study.conditions[0]
    draw(study, [Row(condition, "", "val_error", (), 5, None)], tmp_path / "a.png")
    draw(study, [Row(condition, "", "val_error", (1.0, 2.0), 2, PaperNumber(1.0, 0.2, "t"))], tmp_path / "b.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png"]
