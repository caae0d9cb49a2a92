"""What all commands share: errors as single lines, exit codes, help with examples."""

import errno
import importlib
import pickle
import signal
import socket
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.support.paths import ROOT
from timm_patchup.cli.command import Parser, print_errors, run_command
from timm_patchup.errors import DataError, Failed, HubError, Stopped, UserError, nearest

# Per command: its name in messages, a flag that takes a value, and the arguments that a call needs.
CALLS = {
    "evaluate": ("evaluate.py", "--output", []),
    "predict": ("predict.py", "--plot", []),
    "push": ("push_to_hub.py", "--revision", ["run", "--repo", "USER/NAME"]),
    "study": ("study.py", "--output", []),
    "timing": ("timing.py", "--output", []),
    "train": ("train.py", "--output", []),
}


def main(name: str, *words: str) -> object:
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(f"timm_patchup.cli.{name}").main(list(words))
    return stop.value.code


def test_all_commands_are_tested() -> None:
    commands = [path.stem for path in (ROOT / "timm_patchup" / "cli").glob("*.py") if "def main(" in path.read_text()]
    assert sorted(CALLS) == sorted(commands)


@pytest.mark.parametrize("name", ["evaluate", "push", "study", "train"])
def test_help_has_groups_and_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(name, "--help") == 0
    text = capsys.readouterr().out
    examples = text.split("\nexamples:\n")[1].splitlines()
    assert 2 <= len(examples) <= 4
    parser = importlib.import_module(f"timm_patchup.cli.{name}").make_parser()
    for line in examples:
        before, script, after = line.partition(f"scripts/{CALLS[name][0]} ")
        assert script, line
        assert before.split()[-1] in ("python", "launch")
        flags = list(takewhile(lambda word: word not in ("#", ">", "--"), after.split()))
        assert parser.read(flags)[1] == [], line
    assert "(default: " in text


@pytest.mark.parametrize("name", CALLS)
def test_a_flag_without_its_value_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    script, flag, call = CALLS[name]
    assert main(name, *call, flag) == 2
    line, *more = capsys.readouterr().err.splitlines()
    start, _, text = line.partition(": expected one argument: ")
    assert start == f"{script}: argument {flag}"
    assert text
    assert more == []


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_flag_names_the_nearest(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, flag, call = CALLS[name]
    assert main(name, *call, f"{flag}x", "there") == 2
    assert f"unknown flag {flag}x; did you mean {flag}" in capsys.readouterr().err


def test_words_that_are_not_flags() -> None:
    parser = Parser(prog="try.py", allow_abbrev=False, add_help=False)
    parser.add_argument("--limit", type=int)
    given, problems = parser.read(["there", "--limit", "3", "--xyzzy", "5", "--limt=5", "here"])
    assert given.limit == 3
    assert problems == [
        "unexpected argument 'there'",
        "unknown flag --xyzzy; --help lists all",
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
def test_the_first_process_of_a_machine_prints_for_all(
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


def test_a_line_is_written_in_one_piece() -> None:
    """Otherwise the line of another process may come between it and its end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps what is written apart
    code = "from timm_patchup.cli.command import print_errors; print_errors('try.py', ['a', 'b'], 1)"
    with ours, theirs:
        subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True)
        assert [ours.recv(100), ours.recv(100)] == [b"try.py: a\n", b"try.py: b\n"]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError(["a", "b"]), 2, "try.py: a\ntry.py: b\n"),
        (Failed("a"), 1, "try.py: a\n"),
        (HubError("a"), 2, "try.py: a\n"),
        (HubError("a", retry=True), 1, "try.py: a\n"),
        (pickle.loads(pickle.dumps(DataError("a", retry=True))), 1, "try.py: a\n"),
        (
            Stopped(signal.SIGTERM, "step-1"),
            143,
            "try.py: stopped by SIGTERM; checkpoint step-1: resume the run (--resume)\n",
        ),
        (KeyboardInterrupt(), 130, "try.py: interrupted\n"),
        (OSError(errno.ENOSPC, "full", "x.csv"), 1, "try.py: cannot write x.csv: full; free some space\n"),
        (OSError(errno.ENOSPC, "full", "from", None, "to"), 1, "try.py: cannot write to: full; free some space\n"),
        (PermissionError(errno.EACCES, "denied", "x"), 1, "try.py: cannot access x: denied; free some space\n"),
        (ValueError("a\nb"), 1, "try.py: ValueError: a b (--debug shows the traceback)\n"),
    ],
)
def test_how_a_command_ends(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)

    def work(words: list[str]) -> int:
        raise error

    with pytest.raises(SystemExit) as stop:
        run_command("try.py", work, [], on_interrupt="interrupted", on_file_error="free some space")
    assert (stop.value.code, capsys.readouterr().err) == (code, line)


@pytest.mark.parametrize(("error", "left"), [(UserError("wrong"), True), (RuntimeError("a bug"), False)])
def test_a_known_error_leaves_the_process_group(
    error: Exception, left: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the threads of the group alive, a process may end in SIGABRT instead of its exit code."""

    def work(words: list[str]) -> int:
        raise error

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        with pytest.raises(SystemExit):
            run_command("try.py", work, [], on_interrupt="stopped")
        assert dist.is_initialized() != left
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
