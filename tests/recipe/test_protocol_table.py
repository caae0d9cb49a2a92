"""The table of the paper, the authors' code and ours: every hyper-parameter of every recipe of the paper is in it."""

import runpy
from typing import Any

import pytest

from tests.support.paths import ROOT
from timm_patchup.core.settings import settings_of
from timm_patchup.recipe import Recipe
from timm_patchup.study import load_study

TABLE = ROOT / "recipes" / "protocols" / "README.md"
# What names the data or costs time only.
NOT_SHOWN = {"dataset", "dataset_config", "input_key", "target_key", "num_classes", "input_size", "val_split", "mix"}
NOT_SHOWN |= {"workers", "validation_batch_size"}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    found = runpy.run_path(str(ROOT / "scripts" / "protocol_table.py"))
    found["rows"] = found["protocol_rows"]()
    return found


def test_the_benchmarks_are_those_of_the_papers_tables(script: dict[str, Any]) -> None:
    assert len(script["BENCHMARKS"]) == 6 + 3 + 3 + 1
    assert all(script["_data"](one) and script["_net"](one) for one in script["BENCHMARKS"])


def test_every_hyper_parameter_of_every_recipe_is_in_the_table(script: dict[str, Any]) -> None:
    declared, checked = settings_of(Recipe), set()
    methods = {one.method for study in script["STUDIES"] for one in load_study(study).conditions}
    assert len(methods) == 10
    for benchmark in script["BENCHMARKS"]:
        for method in sorted(methods):
            for key, value in script["recipe"](benchmark, method).items():
                own = key not in declared  # a setting of the method
                if key in NOT_SHOWN or not (own or value != declared[key].default):
                    continue
                checked.add((method if own else "none", key, script["text"](value)))
    assert len(checked) > 90
    assert not checked - script["SHOWN"]


def test_the_table_has_every_value_that_was_read(script: dict[str, Any]) -> None:
    cells = " ".join(ours for *_, ours in script["rows"])
    assert [value for _, _, value in script["SHOWN"] if value not in cells] == []
    written = TABLE.read_text()
    for row in script["rows"]:
        assert f"| {' | '.join(row)} |" in written, "run scripts/update_tables.py"


def test_values_are_grouped_by_what_they_follow(script: dict[str, Any]) -> None:
    assert script["ours"]("lr") == "0.1"
    assert script["ours"]("crop_padding") == "2 (Tiny-ImageNet: 4; ImageNet: none)"
    assert script["ours"]("decay_milestones") == "200 300 (PreActResNet18, PreActResNet34: 500 1000 1500)"
    assert script["ours"]("model_kwargs").endswith("WRN on Tiny-ImageNet: stem_stride 2)")
