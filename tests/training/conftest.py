"""The fixture of the tests of training: the command in this process, writing into the test's folder."""

from pathlib import Path

import pytest

from tests.support.training import TINY, Ended, Train, train_here


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train in this process, a tiny run of the default into tmp_path unless told otherwise."""

    def run(*flags: object) -> Ended:
        return train_here(*TINY, "--output", tmp_path, *flags)

    return run
