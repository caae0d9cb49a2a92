"""Wrong calls of the training command: each is one clear line with exit code 2, and nothing is written."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.training import Train, train_here
from timm_patchup.errors import UserError
from timm_patchup.recipe import load_recipe

LONG = "n" * 300


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--dataset", "hfds/"], "dataset must be fashion_mini or hfds/OWNER/NAME, got 'hfds/'"),
        (["--mix"], "argument --mix: expected at least one argument"),
        (["--recipe"], "argument --recipe: expected one argument"),
        (["--model-kwargs", "noequals"], "--model-kwargs takes KEY=VALUE words, got 'noequals'"),
        (["--torchcompile", "nosuch"], "torchcompile: torch has no backend 'nosuch'"),
        (["--model", "vit_base_patch16_224"], "vit_base_patch16_224 does not take images of 32 x 32 pixels"),
        (["--model", LONG], "model: timm has no model"),
        (["--model", "a\nb"], "model: timm has no model"),
        (["--experiment", LONG], "--experiment must be a name of at most 200 bytes, got 300"),
        (["--experiment", "a\nb"], "--experiment must be a name of printable characters"),
        (["--recipe", LONG], "no recipe"),
        (["--workers", "1000"], "workers must be a whole number in [0, 256], got 1000"),
        (["--recipe", ""], "--recipe is empty"),
        (["--experiment", ""], "--experiment is empty"),
        (["--crop-padding", ""], "crop_padding must be a whole number"),
        (["--push-to-hub", "../x"], "--push-to-hub must be USER/NAME, got '../x'"),
        (["--opt", "adamw", "--opt-betas", "0.9"], "opt: timm cannot create adamw with opt_betas 0.9: IndexError"),
        (["--opt", "adamw", "--opt-betas", "1", "1"], "with opt_betas 1.0 1.0: ValueError: Invalid beta"),
        (["--model-kwargs", "stem_stride=0"], "model: preactresnet8 cannot process images with these settings"),
        (["--model-kwargs", "stem_stride=0", "--mix", "none"], "model: preactresnet8 cannot process images"),
        (["--aa", "v0"], "aa: an operation of timm's 'v0' fails with this Pillow"),
        (["--threads", "100000"], "--threads must be at most 1024"),
        (["--input-size", "3", "100000", "100000"], "input_size must be at most 16384 pixels"),
        (["--output", ""], "--output is empty"),
        (["--aa", "rand-mXX"], "aa: timm would ignore 'mXX' of 'rand-mXX'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_call_is_one_line(train: Train, tmp_path: Path, flags: list[str], expected: str) -> None:
    ended = train(*flags)
    assert ended.code == 2
    (line,) = [line for line in ended.err.splitlines() if "is given twice" not in line]
    assert expected in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "noted"),
    [
        (["--lr", 0.1, "--lr", 0.2], "--lr"),
        (["--lr=0.1", "--lr", 0.2], "--lr"),
        (["--lr", 0.2, "--amp", "--no-amp"], "--no-amp"),
        (["--lr", 0.1, "--lr", 0.15, "--lr", 0.2], "--lr"),
        (["--lr", 0.2, "--debug", "--debug"], None),
        (["--lr", 0.2], None),
    ],
)
def test_a_flag_given_twice_is_noted_and_the_last_one_holds(flags: list[object], noted: str | None) -> None:
    ended = train_here("--show-recipe", *flags)
    assert ended.code == 0
    assert "\nlr: 0.2\n" in ended.out
    assert ended.err.splitlines() == ([f"train.py: {noted} is given twice: the last one holds"] if noted else [])


@pytest.mark.parametrize("source", [None, 3, ["fashion_mini_none"], {}])
def test_a_recipe_is_given_by_a_name_or_a_path(source: Any) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(source)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("where", ["file", "below a file", "/proc", "too long"])
def test_an_output_that_cannot_be_is_one_line(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    output = {"file": tmp_path / "file", "below a file": tmp_path / "file" / "x", "too long": tmp_path / LONG}
    ended = train_here("--limit", 100, "--batch-size", 20, "--threads", 1, "--output", output.get(where, "/proc"))
    assert ended.code == 2
    assert len([line for line in ended.err.splitlines() if line.startswith("train.py: ")]) == 1, ended.err
    assert "Traceback" not in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_recipes_that_include_each_other_are_one_line(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(f"include: [{two}]\n")
    two.write_text(f"include: [{one}]\n")
    for path in (one, two):
        with pytest.raises(UserError, match="includes itself"):
            load_recipe(path)
