"""The figures of a study: curves of its settings, and a line per method where the paper plots one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.study.studying import COUNTS
from timm_patchup.study import Study, figures, load_study
from timm_patchup.study.collect import StudyRow, collect
from timm_patchup.study.definition import make_study
from timm_patchup.study.figures import is_grid, plot_curves, study_figures
from timm_patchup.study.options import StudyOptions


def rows_of(study: Study, by_seed: dict[int, float]) -> list[StudyRow]:
    """Return the rows of a study with the same values in all of them."""
    rows = collect(study, study.runs(max(1, len(by_seed))), StudyOptions(Path("nowhere")))
    return [replace(row, by_seed=by_seed) for row in rows]


def test_grids_are_plotted_as_curves() -> None:
    grids = {name for name in COUNTS if is_grid(load_study(name))}
    assert grids == {"alpha", "gamma_block"}
    study = load_study("gamma_block")
    rows = rows_of(study, {0: 5.0, 1: 6.0})
    points = sum(len(line.get_xdata()) for axes in plot_curves(study, rows[:-1]).axes for line in axes.lines)
    assert points == len(rows) - 1
    assert not any(axes.lines for axes in plot_curves(study, rows_of(study, {})).axes)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("fgsm", {"results.png": 9}),
        ("corruptions", {"results.png": 3}),
        ("attacks", {"results.png": 0, "fgsm_accuracy.png": 1}),
    ],
)
def test_what_the_paper_plots_as_lines_has_a_line_per_method(
    name: str, files: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load_study(name)
    monkeypatch.setattr(figures, "as_png", lambda plot, *arguments: plot(*arguments))
    plotted: dict[str, Any] = study_figures(study, rows_of(study, {0: 5.0, 1: 6.0}))
    assert list(plotted) == list(files)
    methods = list(dict.fromkeys(condition.method for condition in study.conditions))
    for file, count in files.items():
        lines = [axes for axes in plotted[file].axes if count and axes.lines]
        assert len(lines) == count
        for axes in lines:
            (legend,) = axes.figure.legends
            assert [text.get_text() for text in legend.get_texts()] == methods
            assert len(axes.containers) == len(methods)
            part = next(part for part in study.evaluation if part.lines)
            assert axes.get_xlabel() == part.lines
            assert axes.get_ylabel().startswith(part.metric.name.replace("_", " "))
            assert len(axes.containers[0][0].get_xdata()) == len(part.values)


def test_a_definition_can_leave_out_the_lines_of_a_suite() -> None:
    part = {"suite": "fgsm", "metric": "fgsm_accuracy", "values": [0, 0.1]}
    shown = {"title": "t", "groups": [{"benchmarks": ["fashion_mini"], "methods": ["none"]}]}
    lines = [
        make_study("s", {**shown, "evaluation": [{**part, **own}]}).evaluation[0].lines
        for own in ({}, {"lines": "eps of 255"}, {"lines": ""})
    ]
    assert lines == ["eps", "eps of 255", ""]


def test_a_study_that_has_just_begun_is_plotted() -> None:
    study = load_study("fgsm")
    rows = rows_of(study, {})
    (empty,) = study_figures(study, rows).values()
    (begun,) = study_figures(study, [*rows[:-1], replace(rows[-1], by_seed={0: 50.0})]).values()
    assert empty.startswith(b"\x89PNG")
    assert len(begun) > len(empty)


@pytest.mark.parametrize("name", ["fgsm", "loss_terms", "alpha"])
def test_a_title_is_no_formula(name: str) -> None:
    study = replace(load_study(name), title="costs $5^$6")
    assert study_figures(study, rows_of(study, {}))["results.png"].startswith(b"\x89PNG")
