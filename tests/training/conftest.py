"""The fixture of the training tests: the command in this process, with output in the test's folder."""

from pathlib import Path

import pytest

from tests.support.training import TINY, Ended, Train, train_here


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train in this process: by default a tiny run of the default recipe, in tmp_path."""

    def run(*flags: object) -> Ended:
        return train_here(*TINY, "--output", tmp_path, *flags)

    return run
