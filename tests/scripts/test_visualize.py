"""The picture: it is written, it shows what the package did, and bad input ends in one line."""

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from tests.hub.hub_runs import make_run
from tests.support.paths import ROOT

SCRIPT = ROOT / "scripts" / "visualize.py"
FAST = ["--model", "test_resnet", "--image-size", "48", "--sites", "input", "stem", "stage1"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("visualize", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_row(
    script: ModuleType, site: str, model_name: str = "test_resnet", model_args: dict | None = None, **changes: object
):
    settings = {"gamma": 0.5, "block_size": 5, "lam": 0.25, "channel": "auto", "seed": 3, "mode": "both"}
    torch.manual_seed(0)
    model = timm.create_model(model_name, num_classes=2, **model_args or {}).train()
    x = torch.randn(2, 3, 64, 64)
    return script.make_row(model, x, site, argparse.Namespace(**settings | changes)), model


def check_row(row: Any, lam: float) -> None:
    """Compare a row with the paper's equations 3 to 5 and 8, for sample a."""
    a, b = row.features
    assert row.changed.any()
    assert not row.changed.all()
    assert not np.allclose(a, b)
    np.testing.assert_allclose(row.results["hard"].features, np.where(row.changed, b, a), rtol=1e-5, atol=1e-6)
    expected = np.where(row.changed, lam * a + (1 - lam) * b, a)
    np.testing.assert_allclose(row.results["soft"].features, expected, rtol=1e-5, atol=1e-6)
    assert row.results["hard"].label == pytest.approx(row.kept, abs=1e-6)
    assert row.results["soft"].label == pytest.approx(row.kept + (1 - row.kept) * lam, abs=1e-6)


@pytest.mark.parametrize(("site", "lam", "size"), [("input", 0.0, 64), ("stem", 0.25, 32), ("stage1", 0.25, 16)])
def test_row_shows_the_paper_operation(script: ModuleType, site: str, lam: float, size: int) -> None:
    row, _ = make_row(script, site)
    assert row.changed.shape == (size, size)
    check_row(row, lam)


def test_row_of_a_model_with_channels_last(script: ModuleType) -> None:
    small = {"img_size": 64, "embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 2)}
    row, _ = make_row(script, "stage1", "swin_tiny_patch4_window7_224", small)
    assert row.changed.shape == (16, 16)
    check_row(row, 0.25)


def test_row_of_a_token_model_shows_its_grid(script: ModuleType) -> None:
    row, _ = make_row(script, "stage1", "test_vit", {"img_size": 64}, block_size=2)
    assert row.changed.shape == (4, 4)
    check_row(row, 0.25)


def test_row_leaves_the_model_without_hooks(script: ModuleType) -> None:
    _, model = make_row(script, "stem")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_channel_is_the_one_asked_for(script: ModuleType) -> None:
    first, second = (make_row(script, "stem", channel=channel)[0] for channel in (0, 1))
    assert (first.channel, second.channel) == (0, 1)
    assert not np.array_equal(first.changed, second.changed)
    with pytest.raises(ValueError, match="channel is 9999"):
        make_row(script, "stem", channel=9999)


def test_paint_gives_each_origin_its_hue(script: ModuleType) -> None:
    changed = np.array([[False, True]])
    features, limits = np.full((1, 2), 0.6), np.array([0.0, 1.0])
    own, partner = script.paint(features, changed, 0.0, limits)[0]
    mixed = script.paint(features, changed, 0.5, limits)[0, 1]
    assert own[2] > own[0]
    assert partner[0] > partner[2]
    np.testing.assert_allclose(mixed, (own + partner) / 2)


@pytest.mark.parametrize(("mode", "columns"), [("both", 5), ("hard", 4)])
def test_writes_a_picture(script: ModuleType, tmp_path: Path, mode: str, columns: int) -> None:
    output = tmp_path / "new" / "picture.png"
    script.main([*FAST, "--mode", mode, "--output", str(output)])
    picture = Image.open(output)
    assert picture.format == "PNG"
    assert 20_000 < output.stat().st_size < 400_000
    width, height = picture.size
    assert width == pytest.approx(columns * 1.86 * 150, abs=2)
    assert height > 700
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    blue, red = pixels[..., 2] - pixels[..., 0] > 60, pixels[..., 0] - pixels[..., 2] > 60
    assert blue.mean() > 0.02
    assert red.mean() > 0.02


def test_takes_image_files(script: ModuleType, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = [tmp_path / name for name in ("cat_$^$.png", "dog.jpg")]
    for path, size in zip(paths, ((60, 90, 3), (90, 50, 3))):
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(path)
    script.main([*FAST, "--images", *map(str, paths), "--output", str(tmp_path / "out.png")])
    assert (tmp_path / "out.png").stat().st_size > 20_000


def test_picture_of_a_run_on_grey_images(script: ModuleType, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", input_size=[1, 28, 28], mean=[0.3], std=[0.4])
    size = ["--image-size", "28", "--block-size", "3"]
    script.main(["--model", str(run.path), *size, "--output", str(tmp_path / "grey.png")])
    assert (tmp_path / "grey.png").stat().st_size > 20_000


def test_picture_of_a_token_model(script: ModuleType, tmp_path: Path) -> None:
    output = tmp_path / "vit.png"
    model = ["--model", "vit_tiny_patch16_224", "--model-kwargs", "img_size=64", "patch_size=8", "depth=4"]
    script.main([*model, "--sites", "stem", "stage2", "--block-size", "3", "--output", str(output)])
    assert output.stat().st_size > 20_000


BAD = {
    "sites": (["--sites", "stem", "fc"], "Give --sites input, which can be mixed, or name other modules"),
    "missing image": (["--images", "nowhere.png", "nowhere.png"], "nowhere.png"),
    "not an image": (["--images", str(SCRIPT), str(SCRIPT)], "cannot read image"),
    "unknown site": (["--sites", "stagee"], "unknown site 'stagee'"),
    "unknown model": (["--model", "resnet19"], "did you mean resnet18"),
    "model without maps": (["--model", "test_resnet", "--sites", "fc"], "gives a tensor (B, 2), mixing needs maps"),
    "no such folder": (["--model", "local-dir:nowhere"], "cannot load model"),
    "channel": (["--channel", "9999"], "channel is 9999"),
    "channel word": (["--channel", "some"], "--channel"),
    "gamma": (["--gamma", "2"], "gamma must be a number in [0, 1], got 2"),
    "lam": (["--lam", "nan"], "lam must be a number in [0, 1], got nan"),
    "block size": (["--block-size", "0"], "block_size must be a whole number of at least 1, got 0"),
    "image size": (["--image-size", "0"], "image_size must be a whole number of at least 1, got 0"),
    "mode": (["--mode", "hart"], "--mode"),
    "seed": (["--seed", "-1"], "seed must be a whole number of at least 0, got -1"),
    "output is a folder": (["--output", "folder"], "directory"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_ends_in_one_line(
    script: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    output = tmp_path / "out.png"
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        script.main([*FAST, "--output", str(output), *arguments])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert error.count("\n") == 1
    assert message in error
    assert not output.exists()
