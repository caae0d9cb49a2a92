"""The Hub in one line: ``fetch`` a benchmark's data in advance, ``evaluate`` a model.

Both only call what the commands call; the evaluation is imported when it is used.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from ..core.settings import check_value
from ..data.fetch import fetch_splits
from ..data.source import HUB_PREFIX
from ..errors import HubError, UserError
from ..recipe.data_names import load_data_spec
from ..runs.load import find


def fetch(name: str, out_dir: str | Path | None = None, *, test_only: bool = False) -> Path:
    """Download the data of a benchmark, for machines that cannot reach the Hub, and return its folder.

    Args:
        name: a dataset (``cifar10``), a benchmark (``cifar10_wrn28_10``) or a recipe.
        out_dir: destination; None for the Hub's cache. Files that are already there are not downloaded again.
        test_only: leave out the training images.

    Returns:
        A folder in the Hub's layout, for ``--data-dir`` of the commands and ``data_dir=`` of ``evaluate``.

    Raises:
        HubError: the name is unknown, or the data cannot be downloaded.

    Example:
        >>> fetch("imagenet", "data/imagenet", test_only=True)
    """
    try:
        data = load_data_spec(name)
    except UserError as error:
        raise HubError(str(error)) from error
    if not data.dataset.startswith(HUB_PREFIX):
        raise HubError(f"{data.dataset} is part of the package: there is nothing to fetch")
    return fetch_splits(data, [data.val_split] if test_only else [data.train_split, data.val_split], out_dir)


def evaluate(
    model: str | Path,
    suites: str | Sequence[str] = "clean",
    *,
    data: str | None = None,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    output: str | Path | None = None,
    batch_size: int = 100,
    seed: int = 0,
) -> dict[str, dict[str, float | None]]:
    """Measure a model from the Hub, an export or a run as ``scripts/evaluate.py`` does.

    Args:
        model: as for ``load``.
        suites: names of suites, ``"clean,affine"`` or a list; ``"all"`` for all of them.
        data: dataset, benchmark or recipe to test on; None for the benchmark that the model was trained on.
        data_dir: its folder; None to download the test images, and only those.
        limit: number of test samples; None for all.
        output: folder of the report; None for no report.
        batch_size: images per batch.
        seed: seed of all random choices.

    Returns:
        The values per suite, by name.

    Raises:
        HubError: the model or the data cannot be loaded, or do not fit together.
        ValueError, TypeError: an argument is wrong.

    Example:
        >>> timm_patchup.hub.evaluate("USER/NAME")["clean"]["error"]
    """
    from ..evaluation.run import EvalCall, run
    from ..evaluation.suites import parse_suites

    for name, value, low in (("limit", limit, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if value is not None:
            check_value(name, value, int, low=low)
    if seed >= 2**63:
        raise ValueError(f"seed must be below 2**63, got {seed}")
    with tempfile.TemporaryDirectory() as temporary:
        call = EvalCall(
            models=(find(model),),
            suites=parse_suites(suites if isinstance(suites, str) else ",".join(suites)),
            data=data,
            data_dir=data_dir,
            limit=limit,
            batch_size=batch_size,
            output=Path(output or temporary),
            seed=seed,
            threads=torch.get_num_threads(),  # the command uses all cores, a call does not change the number
        )
        try:
            found = run(call, show=lambda tables: None)
        except UserError as error:
            raise HubError(str(error), retry=error.retry) from error
    return {suite: values for suite, by_model in found.items() for values in by_model.values()}
