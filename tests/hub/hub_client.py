"""A process that runs many push commands: the Hub's client reads its settings only once, when imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.hub.hub_server import TOKEN
from tests.support.training import Ended

# Waits between retries are skipped. Each line from the test is a call, each answer is how it ended.
_LOOP = """
import contextlib, io, json, os, sys, time
time.sleep = lambda seconds: None
from timm_patchup.cli.push import main
answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    call = json.loads(line)
    os.environ.pop("HF_TOKEN", None)
    if call["token"]:
        os.environ["HF_TOKEN"] = call["token"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(call["flags"])
        except SystemExit as error:
            code = error.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]), file=answers, flush=True)
"""


def environment(endpoint: str, home: Path) -> dict[str, str]:
    """Return the environment of a process with this Hub as endpoint, an own cache and no token."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    own |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return own | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


class Client:
    """Runs ``push_to_hub.py`` against one Hub."""

    def __init__(self, endpoint: str, home: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(endpoint, home),
        )

    def __call__(self, *flags: object, token: str | None = TOKEN) -> Ended:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps({"flags": [str(flag) for flag in flags], "token": token}), file=self._process.stdin, flush=True
        )
        return Ended(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
