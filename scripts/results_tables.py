"""The tables of results in README.md and recipes/RESULTS.md, made from the values of every seed in recipes/results/.

``update_tables.py`` writes them. ``recipes/results/STUDY.csv`` is what ``study.py --seeds-from`` fills in.
"""

from dataclasses import replace
from pathlib import Path

from timm_patchup.report.numbers import as_text
from timm_patchup.report.tables import markdown_table
from timm_patchup.study import Study, load_study
from timm_patchup.study.collect import StudyRow, collect
from timm_patchup.study.comparisons import Comparison, comparisons
from timm_patchup.study.options import StudyOptions
from timm_patchup.study.paper import paper_tables
from timm_patchup.study.seeds import SeedRow, read_seeds

RESULTS = Path(__file__).resolve().parents[1] / "recipes" / "results"
NAMES = {"test_error": "error, %", "test_nll": "NLL"}
# The paper's gains on the first screen of the README: table and benchmark, with what each is known as.
PAPER = {
    ("tab:tbl-cifar", "cifar100_wrn28_10"): "CIFAR-100, WRN-28-10",
    ("tab:tbl-tiny_imagenet", "tiny_imagenet_resnet101"): "Tiny-ImageNet, ResNet101",
    ("tab:imagenet_result", "imagenet"): "ImageNet, ResNet50",
}


def seeds_of(name: str) -> list[SeedRow]:
    """Return the finished runs of a study."""
    return list(read_seeds(RESULTS / f"{name}.csv").values())


def rows_of(name: str) -> tuple[Study, list[StudyRow]]:
    """Return a study and its rows of error and NLL, from the values of its seeds alone."""
    study = replace(load_study(name), evaluation=())
    options = StudyOptions(RESULTS / "no_runs_here", finished=read_seeds(RESULTS / f"{name}.csv"))
    return study, collect(study, study.runs(), options)


def study_table(name: str) -> str:
    """Return error and NLL of each row of a study, and the difference of its reference from each."""
    study, rows = rows_of(name)
    metrics = {metric: [row for row in rows if row.metric == metric] for metric in study.metrics}
    against = {(one.other.condition.label, one.other.metric): one for one in comparisons(study, rows) if not one.value}
    tested = any(one.corrected is not None for one in against.values())
    head = ["method", "seeds", *(NAMES[metric.name] for metric in metrics)]
    if study.reference is not None:
        head += [f"{study.reference} minus this: {NAMES[metric.name]}" for metric in metrics] + ["wins"]
    body = [[*head, *(["p, Holm"] if tested else [])]]
    for condition in study.conditions:
        own = [next(row for row in of if row.condition is condition) for of in metrics.values()]
        line = [condition.label, f"{len(own[0].by_seed)} of {own[0].planned}", *map(_mean, own)]
        if study.reference is not None:
            found = [against.get((condition.label, metric)) for metric in metrics]
            line += [*map(_difference, found), "" if found[0] is None else f"{found[0].difference.wins}"]
            line += [_p(found[0])] if tested else []
        body.append(line)
    return markdown_table(body, aligned=True)


def cost_line(name: str) -> str:
    """Return what the finished runs of a study cost."""
    known = [row.cpu_minutes for row in seeds_of(name) if row.cpu_minutes is not None]
    return f"{len(seeds_of(name))} runs; {len(known)} of them measured: {sum(known) / 60:.1f} core hours."


def default_line() -> str:
    """Return what the README's training command ends at, over the seeds of the study of Fashion-MNIST."""
    errors = [row.values["test_error"] for row in seeds_of("fashion_mini") if row.place[1] == "hard_patchup"]
    mean = sum(errors) / len(errors)
    ends = f"{mean:.1f}% test error on average, {min(errors):.1f}% to {max(errors):.1f}%"
    return f"Over {len(errors)} seeds it ends at {ends}."


def gains_table(*studies: str) -> str:
    """Return the gains of PatchUp in the paper and in our studies: error without it and with both forms."""
    body = [["data and network", "whose", "none", "hard PatchUp", "soft PatchUp"]]
    for (label, benchmark), title in PAPER.items():
        entries = paper_tables()[label]["entries"]
        found = {e["method"]: e for e in entries if e["benchmark"] == benchmark and e["metric"] == "test_error"}
        cells = [as_text(found[m]["mean"], found[m].get("std"), 2) for m in ("none", "hard_patchup", "soft_patchup")]
        body.append([title, "the paper's", *cells])
    for name in studies:
        study, rows = rows_of(name)
        found = {row.condition.method: row for row in rows if row.metric.name == "test_error"}
        cells = [_mean(found[method]) for method in ("none", "hard_patchup", "soft_patchup")]
        body.append([study.title, "ours", *cells])
    return markdown_table(body, aligned=True)


def _mean(row: StudyRow) -> str:
    return row.ours.with_interval(row.metric.digits)


def _difference(found: Comparison | None) -> str:
    if found is None:
        return ""
    own = found.difference
    return as_text(own.mean, own.interval, found.other.metric.digits, signed=True)


def _p(found: Comparison | None) -> str:
    return "" if found is None or found.corrected is None else f"{found.corrected:.3f}"
