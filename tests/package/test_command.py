"""What the commands share: wrong flags end in one line each, and the first process speaks for all."""

import importlib

import pytest

from tests.support.paths import ROOT
from timm_patchup.cli.command import Parser, print_errors
from timm_patchup.errors import nearest

# Of each command: its script, a flag that takes a value, and what else a call needs.
CALLS = {
    "evaluation": ("evaluate.py", "--output", []),
    "hub": ("push_to_hub.py", "--revision", ["run", "--repo", "USER/NAME"]),
    "study": ("study.py", "--output", []),
    "training": ("train.py", "--output", []),
}


def main(name: str, *words: str) -> object:
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(f"timm_patchup.{name}.cli").main(list(words))
    return stop.value.code


def test_commands_are_all_there() -> None:
    assert CALLS.keys() == {path.parent.name for path in (ROOT / "timm_patchup").glob("*/cli.py")}


@pytest.mark.parametrize("name", CALLS)
def test_a_flag_without_its_value_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    script, flag, call = CALLS[name]
    assert main(name, *call, flag) == 2
    assert capsys.readouterr().err == f"{script}: argument {flag}: expected one argument\n"


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_flag_names_the_nearest(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, flag, call = CALLS[name]
    assert main(name, *call, f"{flag}x", "there") == 2
    assert f"unknown flag {flag}x; did you mean {flag}" in capsys.readouterr().err


def test_words_that_are_no_flags() -> None:
    parser = Parser(prog="try.py", allow_abbrev=False, add_help=False)
    parser.add_argument("--limit", type=int)
    given, problems = parser.read(["there", "--limit", "3", "--xyzzy", "5", "--limt=5", "here"])
    assert given.limit == 3
    assert problems == [
        "unexpected argument 'there'",
        "unknown flag --xyzzy",
        "unknown flag --limt=5; did you mean --limit?",
    ], "a word after an unknown flag is its value"


def test_nearest() -> None:
    assert nearest("epoch", ["epochs", "lr"]) == "; did you mean epochs?"
    assert nearest("gama", {"gamma", "gammas"}) == "; did you mean gamma or gammas?"
    assert nearest("nothing", ["lr"]) == ""
    assert nearest(7, iter(["lr"])) == ""
    assert nearest("site", [f"site{i}" for i in range(9)]).count(" or ") == 2, "not a list of all"


@pytest.mark.parametrize(
    ("ranks", "everywhere", "lines"),
    [
        ({}, False, "try.py: a b\ntry.py: c\n"),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True, "try.py: a b\ntry.py: c\n"),
        ({"RANK": "1", "LOCAL_RANK": "1"}, False, ""),
        ({"RANK": "1", "LOCAL_RANK": "1"}, True, "try.py, process 1: a b\ntry.py, process 1: c\n"),
        ({"RANK": "8", "LOCAL_RANK": "0"}, False, "try.py, process 8: a b\ntry.py, process 8: c\n"),
    ],
)
def test_the_first_process_of_a_machine_complains_for_all(
    ranks: dict[str, str],
    everywhere: bool,
    lines: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    assert print_errors("try.py", ["a\n  b", "c"], 3, everywhere=everywhere) == 3
    assert capsys.readouterr().err == lines
