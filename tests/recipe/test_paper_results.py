"""The paper's numbers: every cell of every table, in the printed order, under the names of our recipes."""

import re
from collections import Counter
from functools import cache
from itertools import cycle
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT
from timm_patchup import list_methods
from timm_patchup.recipe import list_recipes, load_recipe
from timm_patchup.recipe.compose import list_benchmarks, recipes_dir

PAPER = ROOT.parent / "shared" / "paper" / "patchup.tex"
# Label of each table, the numbers it holds counted by hand as rows x columns, and what its columns are in turn.
CIFAR_NETS = ("preactresnet18", "preactresnet34", "wrn28_10")
TABLES = {
    "tab:tbl-tiny_imagenet": 9 * 6,
    "tab:tbl-cifar-svhn": 3 * 9 * 3,
    "tab:imagenet_result": 9 * 2,
    "tab:affine_p34_result": 8 * 6,
    "tab:tbl-tiny_imagenet_attacks": 9 * 4,
    "tab:loss_study": 1 + 2 * 3,
    "tab:layer_study_k": 5 * 3,
    "tab:tbl-running_time": 3 * 4 + 2,
    "table:models_other_hp": 2 * 6 + 5,
    "tab:affine_result": 8 * 6,
    "tab:tbl-svhn": 9 * 6,
    "tab:tbl-cifar": 3 * 9 * 4,
}
ROWS = {
    "No Mixup": "none",
    "Vanilla": "none",
    "Input Mixup": "mixup",
    "ManifoldMixup": "manifold_mixup",
    "Cutout": "cutout",
    "DropBlock": "dropblock",
    "FeatureCutMix": "feature_cutmix",
    "CutMix": "cutmix",
    "Puzzle Mix": "puzzle_mix",
    "PuzzleMix": "puzzle_mix",
    "softpatchup": "soft_patchup",
    "hardpatchup": "hard_patchup",
}
MISPRINTS = {"0.0.21": "0.21"}
Number = tuple[float, float | None]


@cache
def all_tables() -> dict[str, dict[str, Any]]:
    loaded = yaml.safe_load((recipes_dir() / "paper_results.yaml").read_text(encoding="utf-8"))
    assert len({table["label"] for table in loaded}) == len(loaded)
    return {table["label"]: table for table in loaded}


def tables() -> dict[str, dict[str, Any]]:
    """Return the paper's tables."""
    return {label: table for label, table in all_tables().items() if "source" not in table}


def columns(label: str) -> list[tuple[str, ...]]:
    """Return what the cells of a row are, from left to right: (part of the benchmark or the setting, metric)."""
    pair = ("test_error", "test_nll")
    return {
        "tab:tbl-tiny_imagenet": [(net, m) for net in ("resnet101", "resnet152", "wrn28_10") for m in pair],
        "tab:tbl-svhn": [(net, m) for net in CIFAR_NETS for m in pair],
        "tab:tbl-cifar": [(data, m) for data in ("cifar10_", "cifar100_") for m in pair],
        "tab:tbl-cifar-svhn": [(data, "test_error") for data in ("cifar10_", "cifar100_", "svhn_")],
        "tab:imagenet_result": [("imagenet", "test_error"), ("imagenet", "top5_error")],
        "tab:tbl-tiny_imagenet_attacks": [
            (f"{attack} accuracy", "robust_accuracy") for attack in ("deepfool", "ddn", "carlini_wagner", "pgd")
        ],
    }[label]


def read_paper() -> dict[str, list[tuple[str, Number]]]:
    """Return the numbers of each table of the LaTeX source in the printed order, each with the label of its row."""
    text = PAPER.read_text(encoding="utf-8")
    found: dict[str, list[tuple[str, Number]]] = {}
    for body in re.findall(r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", text, flags=re.S):
        (label,) = re.findall(r"\\label\{([^}]*)\}", body)
        grid = body.split(r"\begin{tabular}", 1)[1].rsplit(r"\end{tabular}", 1)[0]
        numbers = []
        for row in grid.split(r"\\"):
            first, *cells = row.split("&")
            numbers += [(first, number) for cell in cells for number in numbers_of(cell)]
        found[label] = numbers
    return found


def numbers_of(cell: str) -> list[Number]:
    """Return the numbers of a cell: several where they are set apart by hyphens, none where it holds words."""
    numbers: list[Number] = []
    for formula in re.findall(r"\$([^$]*)\$", cell):
        bare = re.sub(r"\\mathbf|[{}\s]", "", formula)
        for wrong, right in MISPRINTS.items():
            bare = bare.replace(wrong, right)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:\\pm(\d+(?:\.\d+)?))?", bare)
        if match:
            mean, std = match.groups()
            numbers.append((float(mean), None if std is None else float(std)))
    return numbers


def number(entry: dict[str, Any]) -> Number:
    return float(entry["mean"]), None if "std" not in entry else float(entry["std"])


def test_cells_are_read() -> None:
    assert numbers_of(r" {\ul{$18.63 \pm 0.15$} } ") == [(18.63, 0.15)]
    assert numbers_of(r"{$\mathbf{2.53 \pm 0.07}$}") == [(2.53, 0.07)]
    assert numbers_of("$0.098\n \\pm 0.002$") == [(0.098, 0.002)]
    assert numbers_of("$500${-}$1000$") == [(500.0, None), (1000.0, None)]
    assert numbers_of(r"\shortstack[l]{Input Mixup ($\alpha$ = 1)}") == []
    assert numbers_of(r"\multicolumn{3}{c}{$23.26 \pm 0.59$}") == [(23.26, 0.59)]


def test_every_table_is_there_and_complete() -> None:
    held = tables()
    assert {label: len(table["entries"]) for label, table in held.items()} == TABLES
    assert sum(TABLES.values()) == 500
    for label, table in held.items():
        keys = [(str(e.get("benchmark", e.get("model"))), e.get("method"), e.get("setting"), e["metric"])
                for e in table["entries"]]  # fmt: skip
        assert [key for key, count in Counter(keys).items() if count > 1] == [], f"{label} says one thing twice"
        assert {e["metric"] for e in table["entries"]} == set(table["units"])


def test_names_are_those_of_our_recipes() -> None:
    allowed = {"benchmark", "model", "method", "setting", "note", "metric", "mean", "std"}
    methods = set()
    for table in all_tables().values():
        for entry in table["entries"]:
            assert set(entry) <= allowed
            if "model" in entry:
                continue
            named = entry["benchmark"] if isinstance(entry["benchmark"], list) else [entry["benchmark"]]
            assert set(named) <= set(list_benchmarks())
            methods.add(entry["method"])
    assert methods <= {*list_methods(), "patchup"}, "the paper has no others"
    assert len(methods) >= 11


# Accuracies as OpenMixup prints them: CIFAR-100 after 200, 400, 800 and 1200 epochs, Tiny-ImageNet after 400.
OPENMIXUP = {
    "openmixup:cifar100": {
        "none": (76.42, 77.73, 78.04, 78.55),
        "mixup": (78.52, 79.34, 79.12, 79.24),
        "cutmix": (79.45, 79.58, 78.17, 78.29),
        "manifold_mixup": (79.18, 80.18, 80.35, 80.21),
        "puzzle_mix": (79.96, 80.82, 81.13, 81.10),
    },
    "openmixup:tiny_imagenet": {
        "none": (61.68,),
        "mixup": (63.86,),
        "cutmix": (65.53,),
        "manifold_mixup": (64.15,),
        "puzzle_mix": (65.81,),
    },
}


def test_numbers_of_another_source_name_it() -> None:
    others = {label: table for label, table in all_tables().items() if "source" in table}
    assert set(others) == set(OPENMIXUP)
    for label, table in others.items():
        assert (table["source"], table["units"]) == ("OpenMixup", {"median_error": "%"})
        assert table["url"].startswith("https://github.com/Westlake-AI/openmixup/")
        epochs = (200, 400, 800, 1200) if "cifar" in label else (400,)
        held = {(e["method"], e["setting"]): e["mean"] for e in table["entries"]}
        printed = {
            (method, f"{count} epochs"): pytest.approx(100 - accuracy)
            for method, accuracies in OPENMIXUP[label].items()
            for count, accuracy in zip(epochs, accuracies, strict=True)
        }
        assert held == printed
        for entry in table["entries"]:
            recipe = load_recipe(f"{entry['benchmark']}_{entry['method']}")
            alpha = f"alpha {recipe.mix_settings['alpha']:g}" if entry["method"] != "none" else None
            assert entry.get("note") == alpha, "the recipe has the alpha of the table"


def test_the_file_is_no_recipe() -> None:
    assert not any("paper" in name or "studies" in name for name in list_recipes())


needs_paper = pytest.mark.skipif(not PAPER.is_file(), reason="the paper's LaTeX source is not beside the repository")


@needs_paper
def test_every_number_is_the_papers() -> None:
    printed, held = read_paper(), tables()
    assert list(printed) == list(held)
    for label, cells in printed.items():
        assert [value for _, value in cells] == [number(entry) for entry in held[label]["entries"]], label


@needs_paper
@pytest.mark.parametrize(
    "label",
    [
        "tab:tbl-tiny_imagenet",
        "tab:tbl-cifar-svhn",
        "tab:imagenet_result",
        "tab:tbl-tiny_imagenet_attacks",
        "tab:tbl-svhn",
        "tab:tbl-cifar",
    ],
)
def test_every_number_is_under_its_method_and_column(label: str) -> None:
    cells, entries = read_paper()[label], tables()[label]["entries"]
    nets = [net for net in CIFAR_NETS for _ in range(len(entries) // 3)] if "tbl-cifar" in label else [""] * 500
    for (row, _), entry, (part, metric), net in zip(cells, entries, cycle(columns(label)), nets):
        (name,) = [method for words, method in ROWS.items() if re.search(rf"(?<![A-Za-z]){words}", row)]
        assert entry["method"] == name
        assert entry["metric"] == metric
        assert part in entry["benchmark"] or part == entry["setting"]
        assert net in entry["benchmark"]


@needs_paper
@pytest.mark.parametrize("label", ["tab:affine_p34_result", "tab:affine_result"])
def test_every_deformation_is_under_its_row(label: str) -> None:
    methods = cycle(["cutout", "cutmix", "manifold_mixup", "puzzle_mix", "soft_patchup", "hard_patchup"])
    for (row, _), entry, method in zip(read_paper()[label], tables()[label]["entries"], methods):
        match = re.search(r"(Rotate|Shear|Scale) \((-[\d.]+, )?([\d.]+)\)", row)
        assert match
        kind, low, amount = match.groups()
        sign = "+-" if low else ""
        assert entry["setting"] == f"{kind.lower()} {sign}{amount}"
        assert entry["method"] == method


def test_schedules_agree_with_the_recipes() -> None:
    entries = tables()["table:models_other_hp"]["entries"]
    for model in CIFAR_NETS:
        recipe = load_recipe(f"cifar10_{model}_none")
        said: dict[str, list[float]] = {}
        for entry in entries:
            if entry["model"] == model:
                said.setdefault(entry["metric"], []).append(entry["mean"])
        assert said == {
            "lr": [recipe.lr],
            "decay_milestones": recipe.decay_milestones,
            "decay_rate": [recipe.decay_rate],
            "epochs": [recipe.epochs],
        }


def test_settings_by_hand() -> None:
    """Rows whose place the numbers alone do not tell."""
    loss = {(e["method"], e.get("setting")): e["mean"] for e in tables()["tab:loss_study"]["entries"]}
    assert loss[("none", None)] == 23.26
    assert loss[("soft_patchup", "objective=l2")] == 16.87
    assert loss[("hard_patchup", "objective=l1")] == 16.14
    layers = {(e["setting"], e["metric"]): number(e) for e in tables()["tab:layer_study_k"]["entries"]}
    assert layers[("layer 3", "test_nll")] == (1.14, 0.03)
    assert layers[("random layer", "val_error")] == (16.38, 0.47)
    assert layers[("block mask at the input", "test_error")] == (16.9, 0.21)
    hours = {(str(e["benchmark"]), e["method"]): e["mean"] for e in tables()["tab:tbl-running_time"]["entries"]}
    assert hours[("svhn_preactresnet34", "puzzle_mix")] == 60
    assert hours[("tiny_imagenet_wrn28_10", "patchup")] == 23
