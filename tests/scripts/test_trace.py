"""One batch crosses few files: the numbers may fall, and do not grow."""

import runpy
from typing import Any

from tests.support.paths import ROOT


def test_a_batch_crosses_nine_files_at_most() -> None:
    script: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "trace.py"))
    calls = script["trace_batch"]()
    files = script["files"](calls)
    assert {"core/mixer.py", "methods/patchup.py"} < set(files)
    assert len(files) <= 9, files
    assert script["entries"](calls) <= 51, [call for call in calls if call.file != call.caller]
