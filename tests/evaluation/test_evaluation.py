"""The command: reports, resuming, several models and seeds, several processes."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf

from tests.support.datasets_on_disk import write_parquet
from tests.support.paths import ROOT
from tests.support.training import TWO_PROCESSES, environment
from timm_patchup.evaluation import suites
from timm_patchup.evaluation.context import EvalContext, Measurement
from timm_patchup.evaluation.results import Results
from timm_patchup.evaluation.rows import make_rows
from timm_patchup.evaluation.suites import clean
from timm_patchup.evaluation.suites.corruptions import CORRUPTIONS, mce_table
from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.report.numbers import SeedValues
from timm_patchup.system.locks import LOCK

from .evaluating import evaluate_here, make_context, refused, trained

QUICK = ("clean", "affine", "fgsm", "activations", "geometry")


def results_of(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two models in five suites, on 60 samples."""
    folder = tmp_path_factory.mktemp("report")
    other = trained(1, mix="cutmix")
    ended = evaluate_here(
        "--model", trained(), other, "--suite", ",".join(QUICK), "--limit", 60, "--output", folder, "--seed", 5
    )
    assert ended.code == 0, ended.err
    return folder


def test_contents_of_a_report(report: Path) -> None:
    names = {path.name for path in report.iterdir()}
    figures = {f"{name}.png" for name in QUICK if name != "clean"}
    assert names - {LOCK} == {"results.json", "report.md", "report.html", *figures}
    for name in figures:
        assert (report / name).read_bytes().startswith(b"\x89PNG")
    results = results_of(report)
    assert list(results["models"]) == ["none_0", "cutmix_1"]
    assert list(results["suites"]) == list(QUICK)
    for suite, entries in results["suites"].items():
        for entry in entries.values():
            assert entry["seed"] == 5
            assert entry["count"] == 60, suite
            assert entry["settings"]
            assert entry["values"]


def test_pages_show_the_numbers_and_are_self_contained(report: Path) -> None:
    text, page, results = (report / "report.md").read_text(), (report / "report.html").read_text(), results_of(report)
    for name in ("none_0", "cutmix_1"):
        error = f"{results['suites']['clean'][name]['values']['error']:.3f}"
        rotated = f"{results['suites']['affine'][name]['values']['rotate +-20']:.2f}"
        for content in (text, page):
            assert name in content
            assert error in content
            assert rotated in content
    assert "60 samples, seed 5" in text
    assert "; eps_space: pixels; " in text
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "| | none_0 | cutmix_1 |".replace("| |", "|  |") in text, "models side by side"
    assert str(trained().parent) not in text + page + json.dumps(results), "no local path"


def test_results_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def counted(context: EvalContext) -> Measurement:
        measured.append(context.model.name)
        return clean.measure(context)

    monkeypatch.setitem(suites.SUITES, "clean", replace(clean.SUITE, measure=counted))
    call = ["--suite", "clean", "--limit", 60, "--output", tmp_path]
    assert evaluate_here("--model", trained(), *call).code == 0
    before = results_of(tmp_path)
    ended = evaluate_here("--model", trained(), *call)
    assert (ended.code, measured) == (0, ["none_0"])
    assert ": cached" in ended.out
    assert results_of(tmp_path) == before
    evaluate_here("--model", trained(), *call, "--force")
    assert measured == ["none_0"] * 2
    assert results_of(tmp_path) == before, "the same numbers"
    evaluate_here("--model", trained(), *call, "--seed", 6)
    assert measured == ["none_0"] * 3, "another seed is another result"
    # Another model is added to the report; the results of the first remain.
    evaluate_here("--model", trained(1, mix="cutmix"), *call)
    assert measured == ["none_0"] * 3 + ["cutmix_1"]
    assert list(results_of(tmp_path)["suites"]["clean"]) == ["none_0", "cutmix_1"]


def test_an_interrupted_evaluation_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(context: EvalContext) -> Measurement:
        raise KeyboardInterrupt

    call = ["--model", trained(), "--suite", "clean,fgsm", "--limit", 40, "--output", tmp_path]
    with monkeypatch.context() as patch:
        patch.setitem(suites.SUITES, "fgsm", replace(suites.SUITES["fgsm"], measure=interrupted))
        ended = evaluate_here(*call)
    assert ended.code == 130
    assert "finished results are kept" in ended.err
    assert list(results_of(tmp_path)["suites"]) == ["clean"]
    ended = evaluate_here(*call)
    assert ended.code == 0
    assert ended.out.count(": cached") == 1
    assert list(results_of(tmp_path)["suites"]) == ["clean", "fgsm"]


def test_other_weights_of_the_same_name_replace_results(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_bytes((trained() / "recipe.yaml").read_bytes())
    weights = load_file(trained() / "model.safetensors")
    save_file(weights, run / "model.safetensors")
    call = ["--model", run, "--limit", 40, "--output", tmp_path / "report"]
    evaluate_here(*call, "--suite", "clean,fgsm")
    save_file({name: torch.zeros_like(value) for name, value in weights.items()}, run / "model.safetensors")
    assert evaluate_here(*call).code == 0
    results = results_of(tmp_path / "report")
    assert results["suites"]["clean"]["run"]["values"]["error"] == pytest.approx(90.0)
    assert results["suites"]["fgsm"] == {}, "they belonged to other weights"


def test_seeds_of_one_recipe_are_one_row(tmp_path: Path) -> None:
    runs = [trained(0), trained(1), trained(1, mix="cutmix")]
    ended = evaluate_here("--model", *runs, "--limit", 60, "--output", tmp_path, "--suite", "clean,fgsm")
    assert ended.code == 0, ended.err
    entries = results_of(tmp_path)["suites"]["clean"]
    errors = [entries[name]["values"]["error"] for name in ("none_0", "none_1")]
    expected = f"{np.mean(errors):.3f} ± {np.std(errors, ddof=1):.3f}"
    text = (tmp_path / "report.md").read_text()
    assert f"| none (2 seeds) | {expected} |" in text
    assert "| cutmix_1 |" in text
    assert "± is the sample standard deviation" in text


def test_runs_with_the_same_seed_are_not_averaged(tmp_path: Path) -> None:
    results = Results(tmp_path, {})
    recipe = load_recipe("fashion_mini_none").to_dict()
    for name, seed, changes in (("a", 0, {}), ("b", 0, {}), ("c", 1, {"workers": 2}), ("d", 2, {"lr": 0.3})):
        described = {"method": "none", "architecture": "net", "seed": seed}
        results.models[name] = described | {"recipe": recipe | {"seed": seed} | changes}
    alike = {"settings": {"steps": 7}, "seed": 0}
    entries = {name: alike | {"values": {"both": 1.0, "distance": 2.0}} for name in "abcd"}
    results.suites["attacks"] = entries
    assert [list(row.entries) for row in make_rows(results, "attacks")] == [["a", "c"], ["b"], ["d"]]
    assert make_rows(results, "clean") == []
    entries["c"] = alike | {"values": {"both": 1.0, "distance": None}}
    values = make_rows(results, "attacks")[0].values
    missing = SeedValues()
    assert values == {"both": SeedValues((1.0, 1.0)), "distance": missing}, "no mean over some of the seeds only"
    for changed in ({"settings": {"steps": 9}}, {"seed": 1}):
        results.suites["attacks"] = entries | {"c": entries["c"] | changed}
        rows = make_rows(results, "attacks")
        assert [list(row.entries) for row in rows] == [["a"], ["b"], ["c"], ["d"]], "measured in different ways"
    results.suites["attacks"] = {"c": entries["c"]}
    assert [row.label for row in make_rows(results, "attacks")] == ["c"], "only one of the two seeds was measured"


def test_mce_against_a_named_baseline(tmp_path: Path) -> None:
    results = Results(tmp_path, {})
    for name, value in (("base", 200.0), ("own", 100.0)):
        results.models[name] = {}
        values = dict.fromkeys(CORRUPTIONS, value)
        entry = {"values": values, "curves": {}, "settings": {"images": "made"}, "seed": 0}
        results.suites.setdefault("corruptions", {})[name] = entry

    def stored(baseline: str) -> dict[str, Any]:
        return mce_table(make_rows(results, "corruptions"), {"baseline": baseline}).stored

    found = stored("base")["mce"]
    assert found["baseline"] == "base"
    assert {name: value["mean"] for name, value in found["values"].items()} == {"base": 100.0, "own": 50.0}
    assert stored("nobody") == {}
    results.suites["corruptions"]["own"]["settings"] = {"images": "ready files"}
    assert list(stored("base")["mce"]["values"]) == ["base"], "no ratio of errors on different images"


def test_other_images_of_the_same_name_are_detected(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data0", {"test": 40})
    write_parquet(tmp_path / "data1", {"train": 1, "test": 40})  # the second split has other images
    call = ["--model", trained(), "--suite", "clean", "--output", tmp_path / "report", "--data-dir"]
    assert evaluate_here(*call, tmp_path / "data0").code == 0
    again = evaluate_here(*call, tmp_path / "data0")
    assert ": cached" in again.out
    other = evaluate_here(*call, tmp_path / "data1")
    assert other.code == 2
    assert "has results with fingerprint" in other.err


@pytest.mark.parametrize("changes", [{"mean": [0.1, 0.1, 0.1]}, {"model_kwargs": {"stem_stride": 1}}])
def test_a_model_with_other_preprocessing_is_measured_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = Path(shutil.copytree(trained(), tmp_path / "run"))
    call = ["--model", run, "--suite", "clean", "--limit", 40, "--output", tmp_path / "report"]
    assert evaluate_here(*call).code == 0
    recipe = load_recipe(run / "recipe.yaml").to_dict()
    kwargs = {"model_kwargs": recipe["model_kwargs"] | changes.get("model_kwargs", {})}
    (run / "recipe.yaml").write_text(Recipe.from_dict(recipe | changes | kwargs).to_yaml())
    again = evaluate_here(*call)
    assert again.code == 0, again.err
    assert ": cached" not in again.out


def test_the_same_model_twice_is_refused(tmp_path: Path) -> None:
    ended = evaluate_here("--model", trained(), f"{trained()}/", "--output", tmp_path / "report")
    assert ended.code == 2
    assert "is given twice" in ended.err


def test_the_name_of_a_model_is_no_formula(tmp_path: Path) -> None:
    run = tmp_path / "a$^$"
    shutil.copytree(trained(), run)
    call = ["--suite", "fgsm,geometry,activations", "--limit", 20, "--output", tmp_path / "report"]
    ended = evaluate_here("--model", run, *call)
    assert ended.code == 0, ended.err
    assert (tmp_path / "report" / "fgsm.png").is_file()


def test_all_sources_of_a_model_give_the_same_results(tmp_path: Path) -> None:
    context = make_context(trained(), limit=60)
    model = context.model.network
    spec = context.model.images
    config = {"architecture": "preactresnet8", "num_classes": 10, "mean": spec.mean, "std": spec.std}
    config |= {"input_size": [3, 32, 32], "crop_pct": 1.0, "interpolation": "bilinear"}
    model.pretrained_cfg = config  # type: ignore[assignment]
    save_for_hf(model, tmp_path / "net", model_args={"stem_stride": 2}, safe_serialization=True)
    source = f"local-dir:{tmp_path / 'net'}"
    call = ["--data", "fashion_mini", "--limit", 60, "--output", tmp_path / "report"]
    ended = evaluate_here("--model", source, trained(), *call)
    assert ended.code == 0, ended.err
    entries = results_of(tmp_path / "report")["suites"]["clean"]
    assert entries["net"]["values"]["nll"] == pytest.approx(entries["none_0"]["values"]["nll"], rel=1e-4)
    assert str(tmp_path) not in json.dumps(results_of(tmp_path / "report"))


def test_corrupted_files_in_both_layouts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(20) % 10
    np.save(tmp_path / "labels.npy", labels)
    for name in CORRUPTIONS:
        np.save(tmp_path / f"{name}.npy", rng.integers(0, 256, (100, 32, 32, 3), dtype=np.uint8))
    call = ["--model", trained(), "--suite", "corruptions", "--limit", 20]
    ended = evaluate_here(*call, "--corrupted", tmp_path, "--output", tmp_path / "a")
    assert ended.code == 0, ended.err
    from PIL import Image

    for name in CORRUPTIONS:
        stored = np.load(tmp_path / f"{name}.npy").reshape(5, 20, 32, 32, 3)
        for severity in range(5):
            for number_, label in enumerate(labels):
                path = tmp_path / "folders" / name / str(severity + 1) / f"n{label}" / f"{number_:02d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(stored[severity, number_]).save(path)
    ended = evaluate_here(*call, "--corrupted", tmp_path / "folders", "--output", tmp_path / "b")
    assert ended.code == 0, ended.err
    one, other = (results_of(tmp_path / part)["suites"]["corruptions"]["none_0"] for part in "ab")
    assert one["values"] == other["values"]
    assert one["count"] == 20
    assert "ready files" in one["settings"]["images"]
    (tmp_path / "folders" / "fog").rename(tmp_path / "folders" / "smog")
    line = refused(*call, "--corrupted", tmp_path / "folders", "--output", tmp_path / "c")
    assert "contains neither fog/SEVERITY/CLASS/ nor fog.npy" in line


@pytest.mark.parametrize("batch_size", ["20", "61"])  # with a single batch the second process has none
def test_two_processes_measure_the_same_as_one(tmp_path: Path, batch_size: str) -> None:
    suites = "clean,affine,fgsm,activations,geometry,attacks"
    flags = ["--model", str(trained()), "--suite", suites, "--limit", "61", "--batch-size", batch_size]
    alone = evaluate_here(*flags, "--output", tmp_path / "one")
    assert alone.code == 0, alone.err
    words = [sys.executable, "-m", "accelerate.commands.launch", *TWO_PROCESSES, "-m", "timm_patchup.evaluation"]
    words += [*flags, "--output", str(tmp_path / "two"), "--threads", "1"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    one, two = results_of(tmp_path / "one")["suites"], results_of(tmp_path / "two")["suites"]
    assert list(one) == list(two)
    for suite in one:
        assert two[suite]["none_0"]["count"] == one[suite]["none_0"]["count"] == 61
        # Batches are the same, so counts and distances are bit-identical; sums over batches differ by rounding.
        expected = one[suite]["none_0"]["values"]
        close = pytest.approx(expected, rel=1e-12) if suite in ("clean", "activations") else expected
        assert two[suite]["none_0"]["values"] == close, suite
