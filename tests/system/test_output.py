"""Output whose other end is gone: the work goes on, and the exit code is that of the work."""

import errno
import os
import subprocess
import sys

import pytest

from timm_patchup.system import output
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
