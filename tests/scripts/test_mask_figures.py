"""The figures of masks: what they show is what the package draws, and every one is written."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.paths import ROOT

SCRIPT = ROOT / "scripts" / "mask_figures.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def shown(figure: Any) -> list[np.ndarray]:
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes]


def test_block_mask_at_the_input_swaps_with_the_partner(script: dict[str, Any]) -> None:
    panels = shown(script["input_figure"](0))
    images, mixed = np.stack(panels[:6]), np.stack(panels[6:])
    own, partners = mixed == images, mixed == images[[5, 0, 1, 2, 3, 4]]
    assert (own | partners).all()
    assert 0.2 < 1 - own.mean() < 0.9


def test_masks_are_blocks_and_rectangles(script: dict[str, Any]) -> None:
    panels = shown(script["sampling_figure"](1))
    for mask in panels[6:]:
        rows, columns = mask.any(axis=1), mask.any(axis=0)
        assert (mask == np.outer(rows, columns)).all(), "CutMix's mask is one rectangle"
    assert any((mask != np.outer(mask.any(axis=1), mask.any(axis=0))).any() for mask in panels[:6])
    seeds, blocks = (shown(script["creation_figure"](0))[part] for part in (slice(0, 6), slice(6, 12)))
    for before, after in zip(seeds, blocks):
        assert (after >= before).all()
        assert after.sum() >= before.sum()


@pytest.mark.parametrize("name", ["input", "sampling", "creation"])
def test_every_figure_is_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "--figure", name, "--output", str(tmp_path / "a.png")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_an_output_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "--output", str(tmp_path / "file" / "a.png")])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_another_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be a PNG file under a wrong name."""
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "--output", str(tmp_path / "a.nope")])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert stop.value.code == 2
    assert "PNG" in capsys.readouterr().err
    assert not (tmp_path / "a.nope").exists()
