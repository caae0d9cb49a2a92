"""Predictions for the user's images: the command, its formats, and images that cannot be read."""

import csv
import io
import json
import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from tests.evaluation.evaluating import trained
from tests.support.datasets_on_disk import numbered_image
from timm_patchup.cli.predict import main
from timm_patchup.data.decode import convert_image
from timm_patchup.data.embedded import CLASSES
from timm_patchup.data.images import EVALUATION, StoredImages
from timm_patchup.errors import DataError, UserError
from timm_patchup.evaluation.images import TestImages
from timm_patchup.evaluation.models import load_models, wrap_model
from timm_patchup.evaluation.predict import class_names, predict
from timm_patchup.evaluation.suites.corrupted_files import ArraySource
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.data_names import load_data_spec
from timm_patchup.recipe.parts import ImageSpec


@pytest.fixture
def run() -> Path:
    return trained()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "deeper").mkdir(parents=True)
    for number, name in enumerate(("a.png", "b.png", "deeper/c.png")):
        numbered_image(number, size=40).save(folder / name)
    (folder / "notes.txt").write_text("no image")
    return folder


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


def test_folders_and_files_in_order(run: Path, photos: Path) -> None:
    seen = list(predict(run, [photos / "b.png", photos], batch_size=2))
    assert [Path(one.path).name for one in seen] == ["b.png", "a.png", "b.png", "c.png"]
    assert seen[0] == seen[2]
    assert set(seen[0].labels) <= set(CLASSES)
    assert list(seen[0].probabilities) == sorted(seen[0].probabilities, reverse=True)
    assert len(seen[0].labels) == 5
    whole = next(predict(run, photos / "a.png", top=99))
    assert sum(whole.probabilities) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
def test_images_are_prepared_as_by_timm(crop_mode: str, photos: Path) -> None:
    """Also where timm adds a border, which has the mean of the model; here and in the suites."""
    Image.open(photos / "a.png").resize((60, 24)).save(photos / "wide.png")
    cfg = {"crop_mode": crop_mode, "crop_pct": 0.9, "mean": (0.2, 0.5, 0.8), "interpolation": "bilinear"}
    net = timm.create_model("test_resnet", num_classes=2, pretrained_cfg_overlay=cfg | {"input_size": (3, 32, 32)})
    inputs: list[torch.Tensor] = []
    net.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    list(predict(net, photos / "wide.png"))
    model = wrap_model(net)
    with Image.open(photos / "wide.png") as image:
        transform = timm.data.create_transform(**timm.data.resolve_model_data_config(net), is_training=False)
        expected = transform(image)[None]
        source = ArraySource(np.asarray(image)[None], np.zeros(1, np.int64))
    images, _, _ = TestImages(source, np.arange(1), load_data_spec("fashion_mini"), model.images).spread(1)
    model.classifier(images)
    assert len(inputs) == 2
    for seen in inputs:
        assert (seen - expected).abs().max() < 2.5 / 255 / min(model.images.std)  # bytes, resized without Pillow


def test_a_folder_without_images_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty contains no images"):
        predict(run, tmp_path / "empty")


def test_odd_images_are_read(run: Path, tmp_path: Path) -> None:
    pixels = numbered_image(1, size=40)
    for mode in ("L", "P", "CMYK", "RGBA", "I;16"):
        suffix = "tiff" if mode in ("CMYK", "I;16") else "png"
        image = Image.new(mode, (40, 40)) if mode == "I;16" else pixels.convert(mode)
        image.save(tmp_path / f"{mode.replace(';', '')}.{suffix}")
    frames = [numbered_image(number, size=40) for number in range(3)]
    frames[0].save(tmp_path / "animated.gif", save_all=True, append_images=frames[1:])
    seen = list(predict(run, tmp_path.glob("*.*")))
    assert [one.path for one in seen if one.error] == []
    assert len(seen) == 6


def test_photos_are_held_one_at_a_time(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole batch of them, decoded, would take gigabytes."""
    for number in range(6):
        numbered_image(number, size=40).save(tmp_path / f"{number}.png")
    opened: list[weakref.ref[Image.Image]] = []

    def watched(image: Image.Image, mode: str) -> Image.Image:
        assert [one() for one in opened if one() is not None] == []
        converted = convert_image(image, mode)
        opened.append(weakref.ref(converted))
        return converted

    monkeypatch.setattr("timm_patchup.evaluation.predict.convert_image", watched)
    assert [one.error for one in predict(run, tmp_path)] == [None] * 6
    assert len(opened) == 6


@pytest.mark.parametrize("style", ["table", "csv", "jsonl"])
def test_formats_and_unreadable_images(
    style: str, run: Path, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "cut.png").write_bytes((photos / "a.png").read_bytes()[:200])
    (photos / "text.jpg").write_text("no image")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{photos / 'missing.png'}\n\n{photos / 'a.png'}\n"))
    code, out, err = call(capsys, "--model", run, photos, "-", "--format", style, "--top", 2, "--threads", 1)
    assert code == 1
    for name, reason in (("cut.png", ""), ("text.jpg", "it is not an image"), ("missing.png", "no such file")):
        assert [line for line in err.splitlines() if name in line and reason in line and line.endswith("; skipped")]
    assert "3 image(s) could not be read" in err
    expected = list(predict(run, [photos / "a.png", photos / "b.png", photos / "deeper" / "c.png", photos / "a.png"]))
    if style == "table":
        assert [line.split("  ")[0] for line in out.splitlines()] == [one.path for one in expected]
        assert f"  {expected[0].label} {100 * (expected[0].probability or 0):.1f}%  " in out
    elif style == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [(row["image"], row["label_1"]) for row in rows] == [(one.path, one.label) for one in expected]
        assert float(rows[0]["probability_2"]) == pytest.approx(expected[0].probabilities[1], abs=1e-5)
    else:
        lines = [json.loads(line) for line in out.splitlines()]
        assert [line["image"] for line in lines] == [one.path for one in expected]
        assert [part["label"] for part in lines[0]["classes"]] == list(expected[0].labels[:2])


def test_only_regular_files_are_read(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading the others may never end, whether they are found in a folder or named."""
    os.mkfifo(photos / "fifo.jpg")
    (photos / "zero.jpg").symlink_to("/dev/zero")
    (photos / "loop.jpg").symlink_to("loop.jpg")
    assert [Path(one.path).name for one in predict(run, photos)] == ["a.png", "b.png", "c.png"]
    named = [photos / name for name in ("fifo.jpg", "zero.jpg", "loop.jpg")]
    code, out, err = call(capsys, "--model", run, *named, "--threads", 1)
    assert (code, out, len(err.splitlines())) == (1, "", 4)
    assert err.count("not a regular file; skipped") == 2
    assert "--debug" not in err


def test_a_picture_of_the_predictions(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "--model", run, photos, "--plot", tmp_path / "new" / "seen.png", "--threads", 1)
    assert code == 0, err
    assert (tmp_path / "new" / "seen.png").read_bytes().startswith(b"\x89PNG")


def test_an_image_too_narrow_to_be_resized_is_named(photos: Path) -> None:
    """A line of 20,000 pixels, in a file of 100 bytes, would take 4 GB at the size of a model of ImageNet."""
    Image.new("L", (20_000, 1)).save(photos / "line.png")
    cfg = {"crop_pct": 0.875, "crop_mode": "center", "input_size": (3, 224, 224)}
    net = timm.create_model("test_resnet", num_classes=2, pretrained_cfg_overlay=cfg)
    seen = {Path(one.path).name: one.error for one in predict(net, photos)}
    assert "too narrow" in (seen.pop("line.png") or "")
    assert set(seen.values()) == {None}
    source = ArraySource(np.zeros((2, 1, 20_000, 3), np.uint8), np.zeros(2, np.int64))
    images = wrap_model(net).images
    with pytest.raises(DataError, match="too narrow"):
        StoredImages(source, np.arange(2), images).__getitems__([(EVALUATION, 1)])
    whole = replace(images, crop_mode="squash")
    assert len(StoredImages(source, np.arange(2), whole).__getitems__([(EVALUATION, 1)]).pixels) == 1


@pytest.mark.parametrize("keys", [{"input_size": [3, 100_000, 100_000]}, {"crop_pct": 1e-9}])
def test_images_larger_than_any_memory_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"^{next(iter(keys))} "):
        load_recipe("finetune_none", {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3} | keys)
    with pytest.raises(UserError, match=f"^{next(iter(keys))} "):
        ImageSpec(**{"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3} | keys)


def test_a_folder_for_the_picture_is_refused_at_once(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "--model", run, photos, "--plot", photos, "--threads", 1)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "--plot" in err
    assert f"{photos} is a folder" in err


def test_wrong_calls(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "--top", 0)
    assert code == 2
    assert "--model is required" in err
    assert "no images: give files or folders" in err
    assert "--top must be at least 1" in err
    code, _, err = call(capsys, "--model", run / "nothing", "a.png", "--threads", 1)
    assert code == 2
    assert "no such folder" in err


def test_class_names_of_models_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **more: create(name, **more))
    torch.manual_seed(0)
    names = class_names(load_models(["test_resnet.r160_in1k"])[0])
    assert len(names) == 1000
    assert names[0].startswith("tench")


HOSTILE = "cat\x1b[2J\x1b]0;owned\x07\nb.png  dog 99.0%\u202e"


@pytest.mark.parametrize("style", ["table", "csv", "jsonl"])
def test_names_from_a_file_do_not_reach_the_terminal_as_they_are(
    style: str, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class names and file names of downloaded models and folders."""
    net = timm.create_model("test_resnet", num_classes=2, pretrained_cfg_overlay={"label_names": [HOSTILE, "x,\x9b"]})
    monkeypatch.setattr("timm_patchup.evaluation.predict.load_models", lambda names: [wrap_model(net)])
    (photos / "a.png").rename(photos / "a\x1b[2J\nb.png")
    code, out, err = call(capsys, "--model", "any", photos, "--format", style, "--top", 2, "--threads", 1)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 3 + (style == "csv")
    assert all(line.isprintable() for line in lines)
    if style == "jsonl":
        assert {one["label"] for one in json.loads(lines[0])["classes"]} == {HOSTILE, "x,\x9b"}, "nothing is lost"
    if style == "csv":
        assert len(list(csv.DictReader(io.StringIO(out)))) == 3


def test_an_unreadable_image_with_such_a_name_is_one_line(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "c\x1b[2J\u202e.jpg").write_text("no image")
    code, _, err = call(capsys, "--model", run, photos, "--threads", 1)
    assert code == 1
    assert all(line.isprintable() for line in err.splitlines())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], "an image is empty"),
        (["a.png", ""], "an image is empty"),
        (["a.png", "--plot", "x.nope"], "--plot writes a PNG file"),
        (["a.png", "--plot", "x"], "--plot writes a PNG file"),
        (["a.png", "--plot", "."], "--plot must be a file, but . is a folder"),
        (["a.png", "--plot", ""], "--plot is empty"),
        (["a.png", "--threads", "100000"], "--threads must be at most 1024"),
    ],
)
def test_wrong_calls_are_one_line(
    run: Path, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "--model", run, *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert len(err.splitlines()) == 1
