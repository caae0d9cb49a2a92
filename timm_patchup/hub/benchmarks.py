"""The Hub in one line: ``fetch`` a benchmark's data ahead, ``evaluate`` a model that lies there.

``datasets`` loads every split of a data set to give one; here only the files of the splits that are needed come.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from ..core.checks import check_count
from ..data.source import HUB_PREFIX
from ..errors import DataError, HubError, HubFailed, SiteError, UserError
from ..recipe import Recipe
from ..recipe.data_names import load_data_recipe
from ..runs.load import find
from ..system.network import explain_hub_error as explain


def fetch(name: str, out_dir: str | Path | None = None, *, test_only: bool = False) -> Path:
    """Fetch the data of a benchmark, for machines that do not reach the Hub, and return its folder.

    Args:
        name: a data set (``cifar10``), a benchmark (``cifar10_wrn28_10``) or a recipe.
        out_dir: where to; default the Hub's cache. What is there already is not sent again.
        test_only: leave the training images out.

    Returns:
        A folder in the Hub's layout: ``--data-dir`` of the commands, ``data_dir=`` of ``evaluate``.

    Raises:
        HubError: there is no such benchmark, or the Hub does not give it.

    Example:
        >>> fetch("imagenet", "data/imagenet", test_only=True)
    """
    try:
        recipe = load_data_recipe(name)
    except UserError as error:
        raise HubError(str(error).removeprefix("--data: ")) from error
    if not recipe.dataset.startswith(HUB_PREFIX):
        raise HubError(f"{recipe.dataset} is in the package: there is nothing to fetch")
    return fetch_splits(recipe, [recipe.val_split] if test_only else [recipe.train_split, recipe.val_split], out_dir)


def fetch_splits(recipe: Recipe, splits: Sequence[str], out_dir: str | Path | None = None) -> Path:
    """Fetch the files of some splits of a recipe's data; out of reach, take them from the cache.

    Raises:
        HubError: they cannot be had, or are not named as ``datasets`` names them.
    """
    from huggingface_hub import snapshot_download

    repo = recipe.dataset.removeprefix(HUB_PREFIX)
    inside = f"{recipe.dataset_config}/" if recipe.dataset_config else ""
    wanted = [f"{inside}{deeper}{split}-*.parquet" for split in splits for deeper in ("", "*/")]
    try:
        where = None if out_dir is None else str(out_dir)
        folder = Path(snapshot_download(repo, repo_type="dataset", allow_patterns=wanted, local_dir=where))
    except Exception as error:
        raise explain(error, repo, doing="fetch") from error
    for split in splits:
        if not any(folder.rglob(f"{split}-*.parquet")):
            raise HubFailed(f"data set {repo} has no files {inside}{split}-*.parquet: it is stored in another way")
    return folder


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
        model: as ``load`` takes it.
        suites: names of suites, ``"clean,affine"`` or a list; ``"all"`` for all of them.
        data: a data set, benchmark or recipe to test on; default the benchmark that the model was trained on.
        data_dir: its folder; default the test images come from the Hub, and only those.
        limit: take so many test samples, spread over the classes.
        output: folder of the report; default no report is kept.
        batch_size: images at a time.
        seed: of what the suites draw.

    Returns:
        For each suite its numbers by name.

    Raises:
        HubError: the model or the data cannot be had, or do not fit together.
        ValueError, TypeError: an argument is wrong.

    Example:
        >>> timm_patchup.hub.evaluate("USER/NAME")["clean"]["error"]
    """
    from ..cli.evaluate import read_call
    from ..evaluation.run import run

    for name, value, low in (("limit", limit, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if value is not None:
            check_count(name, value, low=low)
    names = suites if isinstance(suites, str) else ",".join(suites)
    given = {"--data": data, "--data-dir": data_dir, "--limit": limit, "--batch-size": batch_size, "--seed": seed}
    given["--threads"] = torch.get_num_threads()  # the command takes all cores, a call leaves them as they are
    flags = [f"{flag}={value}" for flag, value in given.items() if value is not None]
    with tempfile.TemporaryDirectory() as nowhere:
        call = [f"--model={find(model)}", f"--suite={names}", f"--output={output or nowhere}", *flags]
        try:
            found = run(read_call(call), show=lambda tables: None)
        except (UserError, DataError, SiteError) as error:
            raise HubError(str(error)) from error
    return {suite: values for suite, by_model in found.items() for values in by_model.values()}
