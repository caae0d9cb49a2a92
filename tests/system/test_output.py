"""Output whose other end is gone: the work goes on, and the exit code comes from the work."""

import ast
import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import timm_patchup
from timm_patchup.cli.command import Parser, print_errors
from timm_patchup.system import output
from timm_patchup.system.output import printable, say
from timm_patchup.training.progress import Progress


def test_progress_goes_on_without_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    discarded: list[object] = []
    monkeypatch.setattr(output, "discard", discarded.append)
    monkeypatch.setattr(output.stat, "S_ISCHR", lambda mode: True)
    monkeypatch.setattr(output.os, "fstat", lambda handle: os.stat(os.devnull))
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2, raising=False)
    progress = Progress(enabled=True, num_epochs=1, updates=2, batch_size=4, interval=1)

    class Gone:
        def update(self, count: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        close = set_postfix_str = lambda self, *args, **kwargs: None

    progress._bar = Gone()
    progress.advance(waited=0.0, seconds=0.1, update=1, loss=None)
    assert discarded == [sys.stdout, sys.stderr]
    with pytest.raises(OSError, match="No space"), output.outliving_terminal():
        raise OSError(errno.ENOSPC, "No space left on device")


def test_the_exit_code_does_not_depend_on_who_reads() -> None:
    code = "from timm_patchup.cli.command import print_errors; raise SystemExit(print_errors('x', ['wrong'], 2))"
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-c", code], stderr=full).returncode == 2


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_name_in_any_encoding_is_read_and_printed(encoding: str) -> None:
    """Also one that no encoding has: a file from an old archive."""
    code = (
        "import sys; from timm_patchup.cli.command import run_command;"
        "run_command('x', lambda words: print(*sys.stdin, '\u65e5', *words), None, on_interrupt='')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    words = [sys.executable, "-c", code, b"caf\xe9"]
    done = subprocess.run(words, input=b"caf\xe9", capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    printed = {"utf-8": "日", "ascii": r"\u65e5"}[encoding]
    assert done.stdout.decode() == rf"caf\udce9 {printed} caf\udce9" + "\n"


HOSTILE = "cat\x1b]0;owned\x07\x1b[2J\n\r\t\x9b\u202e\u2066\u200b\u2028\udce9\x00"


def test_what_is_not_printable_is_escaped() -> None:
    assert printable(HOSTILE) == (r"cat\u001b]0;owned\u0007\u001b[2J\n\r\t\u009b\u202e\u2066\u200b\u2028\udce9\u0000")
    honest = "日本\u3000café\u00a0🐱 \\ C:\\x naïve — ²"
    assert printable(honest) == honest
    stream = io.StringIO()
    say(HOSTILE, "two", stream=stream)
    assert stream.getvalue().count("\n") == 2
    assert json.loads(printable(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE, "JSON stays JSON"


def test_error_lines_and_help_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    print_errors("x", [f"no class {HOSTILE}"], 2)
    parser = Parser(prog="x", description=f"Model {HOSTILE}")
    parser.add_argument("--y", help=f"(default: {HOSTILE})".replace("%", ""))
    parser.print_help()
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert "owned" in text
        assert text.replace("\n", "").isprintable()


def test_all_of_the_package_prints_through_say() -> None:
    """Another way to print would be a way for foreign text to reach the terminal as it is."""
    found = []
    for path in Path(timm_patchup.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ("print", "traceback.print_exc") or called.endswith(
                    (".print", "stdout.write", "stderr.write")
                ):
                    found.append(f"{path.name}:{node.lineno}")
    assert found == []
