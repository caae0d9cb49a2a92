"""Studies: their grids counted by hand, their commands read back, rows from made-up results, and a real small one."""

import csv
import json
import os
import runpy
import shlex
import signal
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from timm_patchup.methods import list_methods
from timm_patchup.recipe import RecipeError, load_recipe
from timm_patchup.recipe.flags import given_keys
from timm_patchup.study import Condition, Run, list_studies, load_study
from timm_patchup.study.cli import devices, main
from timm_patchup.study.collect import Row, check_finished, collect, is_done
from timm_patchup.study.commands import Options, commands, data_flags, flags, run_keys, run_recipe
from timm_patchup.study.definition import make_study
from timm_patchup.study.paper import PaperNumber, paper_number
from timm_patchup.study.runner import Job, Runner, last_line
from timm_patchup.study.tables import comma_separated, draw, markdown, number
from timm_patchup.training.cli import make_parser
from timm_patchup.training.run_folder import RunFolder

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


def study_here(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return int(caught.value.code or 0)


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


def finish(folder: Path, run: Run, options: Options, *, error: float, loss: float = 1.0, val: float = 0.0) -> None:
    """Write a run as the training command leaves it, with made-up numbers: epoch 2 of 3 was the best."""
    run_folder = RunFolder(folder / "runs" / run.name)
    run_folder.begin(run_recipe(run, options), run.name)
    row: dict[str, Any] = dict.fromkeys(("lr", "train_loss", "val_loss", "val_top1", "val_top5"), 0.0)
    run_folder.write_summary([{**row, "epoch": e, "val_error": val if e == 2 else 99.0} for e in (1, 2, 3)])
    test = {"error": error, "loss": loss, "top1": 100 - error, "top5": 90.0, "count": 10}
    run_folder.write_results({"test": test, "best_epoch": 2, "epochs": 3, "chosen_on": "validation"})


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


def test_values_of_an_evaluation(tmp_path: Path) -> None:
    study, options = load_study("affine"), Options(tmp_path)
    run = study.runs(1)[0]
    finish(tmp_path, run, options, error=20.0)
    assert not is_done(study, run, options), "the evaluation is left"
    options.report(run).mkdir(parents=True)
    entry = {run.name: {"values": {"rotate +-20": 36.45, "scale 0.6": None}}}
    (options.report(run) / "results.json").write_text(json.dumps({"suites": {"affine": entry}}))
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


# Processes


def python(code: str) -> list[str]:
    return ["python", "-c", code]


def test_jobs_run_side_by_side_and_failures_do_not_stop_them(tmp_path: Path) -> None:
    ended: list[tuple[str, int]] = []
    jobs = [
        Job("bad", [python("print('why'); raise SystemExit(3)"), python("open('never', 'w')")], tmp_path / "l" / "bad"),
        Job("two", [python("print(1)"), python("print(2)")], tmp_path / "l" / "two"),
    ]
    outcome = Runner(2, [], lambda job, code, _: ended.append((job.name, code))).run(jobs)
    assert (outcome.failed, outcome.signal) == (["bad"], 0)
    assert sorted(ended) == [("bad", 3), ("two", 0)]
    assert last_line(tmp_path / "l" / "bad") == "why"
    assert [line for line in (tmp_path / "l" / "two").read_text().splitlines() if line[0] != "$"] == ["1", "2"]
    assert last_line(tmp_path / "no") == ""


def test_each_job_has_its_gpu(tmp_path: Path) -> None:
    code = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(0.5)"
    jobs = [Job(str(i), [python(code)], tmp_path / str(i)) for i in range(2)]
    Runner(2, ["5", "7"], lambda *_: None).run(jobs)
    assert [last_line(job.log) for job in jobs] == ["5", "7"]


def signal_when(condition: Callable[[], bool], *, times: int = 1) -> threading.Thread:
    """Send this process SIGINT once a condition holds, as Ctrl-C would."""

    def wait() -> None:
        deadline = time.monotonic() + 120
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_second_signal_kills(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    job = Job("j", [python(stubborn)], tmp_path / "log")
    thread = signal_when(lambda: last_line(job.log) == "up", times=2)
    start = time.monotonic()
    outcome = Runner(1, [], print).run([job, job])
    assert 0.5 < time.monotonic() - start < 30, "the first signal waits for a checkpoint, the second does not"
    assert (outcome.failed, outcome.signal) == ([], signal.SIGINT)
    thread.join()


SMALL = """
title: a small study
seeds: 2
groups:
- {benchmarks: [fashion_mini], methods: [none, hard_patchup]}
"""
FAILING = """
title: a study with a run that fails
seeds: 1
groups:
- benchmarks: [fashion_mini]
  methods: [hard_patchup]
  cases: {bad: {mix_gamma: 2.0}, good: {}}
"""


def test_a_study_stopped_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    folder = tmp_path / "out" / "small"
    words = ["--study", tmp_path / "small.yaml", "--output", tmp_path / "out", "--limit", 100, "--threads", 1]
    training = ["--", "--epochs", 6, "--batch-size", 20]
    # The first run has written a checkpoint, and has more to do.
    run = folder / "runs" / "fashion_mini_none-seed0"
    thread = signal_when(lambda: (run / "summary.csv").is_file())
    assert study_here(*words, *training) == 130
    thread.join()
    assert "stopped with 0 of 4 runs done; go on with the same command" in capsys.readouterr().out
    assert "**Partial: 0 of 4 runs are done.**" in (folder / "results.md").read_text()
    assert [path.name for path in (folder / "runs").iterdir()] == [run.name]
    log = folder / "logs" / f"{run.name}.log"
    assert "stopped by SIGTERM; checkpoint" in last_line(log)

    words += ["--jobs", 2, *training]
    assert study_here(*words) == 0
    assert "resumed from" in log.read_text()
    results = {path.parent: path.stat().st_mtime_ns for path in folder.glob("runs/*/results.json")}
    assert len(results) == 4
    text = (folder / "results.md").read_text()
    assert "partial" not in text.lower()
    assert str(tmp_path) not in text + (folder / "results.csv").read_text()
    assert "--limit 100 -- --epochs 6" in text
    errors = [json.loads((folder / "runs" / f"fashion_mini_none-seed{i}" / "results.json").read_text()) for i in (0, 1)]
    values = [result["test"]["error"] for result in errors]
    assert f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" in text
    assert (folder / "results.png").stat().st_size > 1000
    assert not list(folder.glob(".partial*"))

    capsys.readouterr()
    assert study_here(*words) == 0
    assert "4 runs, 4 done already" in capsys.readouterr().out
    assert {path.parent: path.stat().st_mtime_ns for path in folder.glob("runs/*/results.json")} == results
    assert study_here("--study", tmp_path / "small.yaml", "--output", tmp_path / "out") == 2, "other flags, other runs"


def test_a_failing_run_is_named_and_the_others_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "failing.yaml").write_text(FAILING)
    study = load_study(str(tmp_path / "failing.yaml"))
    _, good = study.runs()
    finish(tmp_path / "failing", good, Options(tmp_path), error=12.0)
    assert study_here("--study", tmp_path / "failing.yaml", "--output", tmp_path) == 1
    out, err = capsys.readouterr()
    assert "failed, code 2: fashion_mini_hard_patchup-bad-seed0: train.py: mix hard_patchup: gamma" in out
    assert "1 of 2 runs failed: fashion_mini_hard_patchup-bad-seed0" in err
    text = (tmp_path / "failing" / "results.md").read_text()
    assert "- fashion_mini_hard_patchup-bad-seed0: see logs/fashion_mini_hard_patchup-bad-seed0.log" in text
    assert "1 of 2 runs are done" in text
    assert "12.00" in text


def test_a_run_ended_before_it_began_is_begun_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        (folder.path / ".partial-recipe.yaml").write_text("epo")
    assert folder.state() == "new"
    (folder.path / "thesis.tex").write_text("")
    assert folder.state() == "foreign"


def test_time_is_measured(tmp_path: Path) -> None:
    from timm_patchup.study import timing

    small = ["--output", str(tmp_path), "--experiment", "t", "--batch-size", "4", "--threads", "1", "--resume"]
    timing.main(["--recipe", "fashion_mini_none", *small])
    results = RunFolder(tmp_path / "t").results()
    assert 0.1 < results["time_ratio"] < 5
    assert RunFolder(tmp_path / "t").state() == "finished"
