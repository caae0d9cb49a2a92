"""The figures of a study: curves of its settings, and a line per method where the paper plots one."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.study.studying import COUNTS
from timm_patchup.study import curves, load_study, tables
from timm_patchup.study.collect import collect
from timm_patchup.study.curves import is_grid, plot_curves, plot_study
from timm_patchup.study.options import StudyOptions


def test_grids_are_plotted_as_curves(tmp_path: Path) -> None:
    grids = {name for name in COUNTS if is_grid(load_study(name))}
    assert grids == {"alpha", "gamma_block"}
    study, options = load_study("gamma_block"), StudyOptions(tmp_path)
    rows = [replace(row, by_seed={0: 5.0, 1: 6.0}) for row in collect(study, study.runs(3), options)]
    plot_curves(study, rows[:-1], tmp_path / "a.png")
    plot_curves(study, collect(study, study.runs(3), options), tmp_path / "empty.png")
    assert (tmp_path / "a.png").stat().st_size > (tmp_path / "empty.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("fgsm", {"results.png": 9}),
        ("corruptions", {"results.png": 3}),
        ("attacks", {"results.png": 0, "fgsm_accuracy.png": 1}),
    ],
)
def test_what_the_paper_plots_as_lines_has_a_line_per_method(
    name: str, files: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, options = load_study(name), StudyOptions(tmp_path)
    rows = [replace(row, by_seed={0: 5.0, 1: 6.0}) for row in collect(study, study.runs(2), options)]
    panels: dict[str, list[Axes]] = {}
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: panels.update({Path(path).name: figure.axes}))
    monkeypatch.setattr(curves, "replacing", nullcontext)
    monkeypatch.setattr(tables, "replacing", nullcontext)
    assert plot_study(study, rows, tmp_path) == list(files)
    methods = list(dict.fromkeys(condition.method for condition in study.conditions))
    for file, count in files.items():
        lines = [axes for axes in panels[file] if count and axes.lines]
        assert len(lines) == count
        for axes in lines:
            (legend,) = axes.figure.legends
            assert [text.get_text() for text in legend.get_texts()] == methods
            assert len(axes.containers) == len(methods)
            part = next(part for part in study.evaluation if part.lines)
            assert axes.get_xlabel() == part.lines
            assert axes.get_ylabel().startswith(part.metric.replace("_", " "))
            assert len(axes.containers[0][0].get_xdata()) == len(part.values)


def test_a_study_that_has_just_begun_is_plotted(tmp_path: Path) -> None:
    study, options = load_study("fgsm"), StudyOptions(tmp_path)
    rows = collect(study, study.runs(1), options)
    assert plot_study(study, rows, tmp_path) == ["results.png"]
    empty = (tmp_path / "results.png").stat().st_size
    plot_study(study, [*rows[:-1], replace(rows[-1], by_seed={0: 50.0})], tmp_path)
    assert (tmp_path / "results.png").stat().st_size > empty > 1000


@pytest.mark.parametrize("name", ["fgsm", "loss_terms", "alpha"])
def test_a_title_is_no_formula(name: str, tmp_path: Path) -> None:
    study = replace(load_study(name), title="costs $5^$6")
    plot_study(study, collect(study, study.runs(1), StudyOptions(tmp_path)), tmp_path)
    assert (tmp_path / "results.png").is_file()
