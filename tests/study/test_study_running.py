"""Running studies: parallel processes, stopped and resumed, trained and then evaluated."""

import csv
import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.study.studying import finish, study_here
from timm_patchup.runs.folder import RunFolder
from timm_patchup.study import load_study
from timm_patchup.study.options import StudyOptions
from timm_patchup.study.runner import Job, Runner, last_line


def python(code: str) -> list[str]:
    return ["python", "-c", code]


def test_jobs_run_in_parallel_and_survive_failures_of_others(tmp_path: Path) -> None:
    ended: list[tuple[str, int]] = []
    jobs = [
        Job("bad", [python("print('why'); raise SystemExit(3)"), python("open('never', 'w')")], tmp_path / "l" / "bad"),
        Job("two", [python("print(1)"), python("print(2)")], tmp_path / "l" / "two"),
    ]
    outcome = Runner(2, [], lambda job, code, *_: ended.append((job.name, code))).run(jobs)
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


def test_a_run_that_another_process_trains_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Children of a killed study may still be running: the next call waits for them."""
    folder, held, release = RunFolder(tmp_path / "run"), threading.Event(), threading.Event()
    assert not folder.in_use(), "there is no run yet"

    def train() -> None:
        with folder.locked():
            held.set()
            release.wait(60)

    thread = threading.Thread(target=train)
    thread.start()
    assert held.wait(60)
    order: list[str] = []

    def ended(job: Job, code: int, *_: float) -> None:
        order.append(job.name)
        release.set()

    jobs = [Job(name, [python("pass")], tmp_path / name) for name in ("first", "second")]
    outcome = Runner(1, [], ended).run([replace(jobs[0], busy=folder.in_use), jobs[1]])
    thread.join()
    assert (order, outcome.failed) == (["second", "first"], [])
    assert capsys.readouterr().out.count("first: waiting, another process is training it") == 1
    assert not folder.in_use()


def signal_when(
    condition: Callable[[], bool], *, times: int = 1, number: signal.Signals = signal.SIGINT
) -> threading.Thread:
    """Send this process a signal, by default SIGINT, once a condition is true."""

    def wait() -> None:
        deadline = time.monotonic() + 120
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        for _ in range(times):
            os.kill(os.getpid(), number)
            time.sleep(0.5)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_every_request_to_stop_reaches_the_runs(tmp_path: Path, number: signal.Signals) -> None:
    """As a training they then write a checkpoint; a runner that died of the signal would leave them behind."""
    running = "import time; print('up', flush=True); time.sleep(60)"
    job = Job("j", [python(running)], tmp_path / "log")
    thread = signal_when(lambda: last_line(job.log) == "up", number=number)
    outcome = Runner(1, [], print).run([job])
    assert (outcome.failed, outcome.signal) == ([], number)
    thread.join()


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
  cases: {bad: {mix_sites: [nowhere]}, good: {}}
"""


def test_a_study_stopped_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    folder = tmp_path / "out" / "small"
    words = ["--study", tmp_path / "small.yaml", "--output", tmp_path / "out", "--limit", 100, "--threads", 1]
    training = ["--", "--epochs", 30, "--batch-size", 20]
    # The first run has written a checkpoint and has seconds of work left, so that the signal arrives in time.
    run = folder / "runs" / "fashion_mini_none-seed0"
    thread = signal_when(lambda: (run / "summary.csv").is_file())
    assert study_here(*words, *training) == 130
    thread.join()
    assert "stopped with 0 of 4 runs done; run the same command again to resume" in capsys.readouterr().out
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
    assert "--limit 100 -- --epochs 30" in text
    errors = [json.loads((folder / "runs" / f"fashion_mini_none-seed{i}" / "results.json").read_text()) for i in (0, 1)]
    values = [result["test"]["error"] for result in errors]
    half = 12.7062047 * statistics.stdev(values) / 2**0.5  # t with one degree of freedom
    assert f"{statistics.mean(values):.2f} ({statistics.mean(values) - half:.2f} to " in text
    assert (folder / "results.png").stat().st_size > 1000
    assert not list(folder.glob(".partial*"))

    capsys.readouterr()
    assert study_here(*words) == 0
    assert "4 runs, 4 already done" in capsys.readouterr().out
    assert {path.parent: path.stat().st_mtime_ns for path in folder.glob("runs/*/results.json")} == results
    assert study_here("--study", tmp_path / "small.yaml", "--output", tmp_path / "out") == 2, "other flags, other runs"


def test_a_failed_run_is_named_and_the_others_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "failing.yaml").write_text(FAILING)
    study = load_study(str(tmp_path / "failing.yaml"))
    _, good = study.runs()
    finish(tmp_path / "failing", good, StudyOptions(tmp_path), error=12.0)
    assert study_here("--study", tmp_path / "failing.yaml", "--output", tmp_path) == 1
    out, err = capsys.readouterr()
    assert (
        "failed with code 2: fashion_mini_hard_patchup-bad-seed0: train.py: mix hard_patchup: unknown site 'nowhere'"
        in out
    )
    assert "1 of 2 runs failed: fashion_mini_hard_patchup-bad-seed0" in err
    text = (tmp_path / "failing" / "results.md").read_text()
    assert "- fashion_mini_hard_patchup-bad-seed0: see logs/fashion_mini_hard_patchup-bad-seed0.log" in text
    assert "1 of 2 runs are done" in text
    assert "12.00" in text


def test_a_run_killed_before_it_began_counts_as_new(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        (folder.path / ".partial-recipe.yaml").write_text("epo")
    assert folder.state() == "new"
    (folder.path / "thesis.tex").write_text("")
    assert folder.state() == "foreign"


def test_time_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from timm_patchup.cli import timing

    small = ["--output", str(tmp_path), "--experiment", "t", "--batch-size", "4", "--threads", "1", "--resume"]
    with pytest.raises(SystemExit) as caught:
        timing.main(["--recipe", "fashion_mini_none", *small])
    assert caught.value.code == 0
    results = RunFolder(tmp_path / "t").results()
    assert 0.1 < results["time_ratio"] < 5
    assert RunFolder(tmp_path / "t").state() == "finished"
    line = f"one update with fashion_mini_none takes {results['time_ratio']:.2f}x as long as with hard_patchup\n"
    assert capsys.readouterr().out.endswith(line)
    for words, problem in (
        (["--experiment", "u"], "timing.py: --recipe and --experiment are missing"),
        (["--recipe", "fashion_mini_none", *small, "--experiment", "u", "--torchcompile", "eager"], "in eager mode"),
    ):
        with pytest.raises(SystemExit) as caught:
            timing.main(words)
        assert caught.value.code == 2
        assert problem in capsys.readouterr().err
    assert not (tmp_path / "u").exists()


EVALUATED = """
title: trained, then evaluated
seeds: 1
paper: ["tab:affine_p34_result"]
evaluation:
- {suite: affine, metric: affine_error, values: [rotate +-20, scale 1.4], limit: 20}
- {suite: fgsm, metric: fgsm_accuracy, values: ["0"]}
- {suite: clean, metric: ece, values: [ece], limit: 20}
groups:
- {benchmarks: [fashion_mini], methods: [none]}
"""


def rows_of(file: Path) -> dict[tuple[str, str], dict[str, str]]:
    """Return the rows of a study's CSV by metric and setting."""
    with file.open(encoding="utf-8") as lines:
        return {(row["metric"], row["setting"]): row for row in csv.DictReader(lines)}


def test_a_study_stopped_in_its_evaluation_does_not_train_again(tmp_path: Path) -> None:
    (tmp_path / "deformed.yaml").write_text(EVALUATED)
    folder = tmp_path / "out" / "deformed"
    words = ["--study", tmp_path / "deformed.yaml", "--output", tmp_path / "out", "--limit", 60, "--threads", 1]
    training = ["--", "--epochs", 1, "--batch-size", 20]
    log = folder / "logs" / "fashion_mini_none-seed0.log"
    thread = signal_when(lambda: log.is_file() and "-m timm_patchup.evaluation" in log.read_text())
    assert study_here(*words, *training) == 130
    thread.join()
    weights = folder / "runs" / "fashion_mini_none-seed0" / "model.safetensors"
    trained = weights.stat().st_mtime_ns
    assert "Partial: 0 of 1 runs are done" in (folder / "results.md").read_text()
    assert study_here(*words, "--jobs", 0, *training) == 0, "only collects"
    done = {place: row["seeds_done"] for place, row in rows_of(folder / "results.csv").items()}
    assert done.pop(("test_error", "")) == "1"
    assert set(done.values()) == {"0"}, "trained and not evaluated"

    assert study_here(*words, *training) == 0
    assert weights.stat().st_mtime_ns == trained
    names = ("fashion_mini_none-seed0-20_images", "fashion_mini_none-seed0")
    fewer, whole = (json.loads((folder / "reports" / name / "results.json").read_text()) for name in names)
    assert (fewer["data"]["samples"], whole["data"]["samples"]) == (20, 60)
    (affine,), (fgsm,) = fewer["suites"]["affine"].values(), whole["suites"]["fgsm"].values()
    rows = rows_of(folder / "results.csv")
    few = json.loads((folder / "reports" / "fashion_mini_none-seed0-20_images" / "results.json").read_text())
    assert few["data"]["samples"] == 20, "images that are other data have another report"
    (clean,) = few["suites"]["clean"].values()
    shown = {place: float(row["mean"]) for place, row in rows.items() if row["metric"] != "test_error"}
    assert shown.pop(("ece", "ece")) == clean["values"]["ece"]
    assert shown == {
        ("affine_error", "rotate +-20"): affine["values"]["rotate +-20"],
        ("affine_error", "scale 1.4"): affine["values"]["scale 1.4"],
        ("fgsm_accuracy", "0"): fgsm["values"]["0"],
    }
    assert shown["fgsm_accuracy", "0"] == pytest.approx(100 - float(rows["test_error", ""]["mean"]))
