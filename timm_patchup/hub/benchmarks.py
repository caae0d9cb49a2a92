"""The Hub in one line: ``fetch`` a benchmark's data ahead, ``evaluate`` a model that lies there.

``datasets`` loads every split of a data set to give one; here only the files of the splits that are needed come.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ..data.source import HUB_PREFIX
from ..recipe import Recipe, RecipeError
from ..recipe.data_names import load_data_recipe
from .failures import explain
from .load import find
from .weights import HubError


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
    except RecipeError as error:
        raise HubError(str(error).removeprefix("--data: "), code=2) from error
    if not recipe.dataset.startswith(HUB_PREFIX):
        raise HubError(f"{recipe.dataset} is in the package: there is nothing to fetch", code=2)
    return fetch_splits(recipe, [recipe.val_split] if test_only else [recipe.train_split, recipe.val_split], out_dir)


def fetch_splits(recipe: Recipe, splits: Sequence[str], out_dir: str | Path | None = None) -> Path:
    """Fetch the files of some splits of a recipe's data, all of one commit; out of reach, take them from the cache.

    Raises:
        HubError: they cannot be had.
    """
    from huggingface_hub import HfApi, snapshot_download

    repo = recipe.dataset.removeprefix(HUB_PREFIX)
    try:
        info = HfApi().dataset_info(repo)
        wanted = _files_of([sibling.rfilename for sibling in info.siblings or ()], recipe, splits)
        where = None if out_dir is None else str(out_dir)
        return Path(
            snapshot_download(repo, repo_type="dataset", revision=info.sha, allow_patterns=wanted, local_dir=where)
        )
    except Exception as error:
        told = explain(error, repo, doing="fetch")
        cached = _cached(repo) if out_dir is None else None
        try:
            names = [] if cached is None else [str(path.relative_to(cached)) for path in cached.rglob("*.parquet")]
            _files_of(names, recipe, splits)
        except HubError:
            raise told from error
        assert cached is not None
        return cached


def _cached(repo: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo, repo_type="dataset", local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _files_of(names: Sequence[str], recipe: Recipe, splits: Sequence[str]) -> list[str]:
    """Return the files of some splits, named as ``datasets`` names them; raise HubError where one has none."""
    folder = f"{recipe.dataset_config}/" if recipe.dataset_config else ""
    found: list[str] = []
    for split in splits:
        inside = [PurePosixPath(name) for name in names if name.startswith(folder)]
        own = [str(path) for path in inside if path.match(f"{split}-*.parquet")]
        if not own:
            repo = recipe.dataset.removeprefix(HUB_PREFIX)
            raise HubError(f"data set {repo} has no files {folder}{split}-*.parquet: it is stored in another way")
        found += own
    return found


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
        HubError: the model or the data cannot be had, or the call is wrong.

    Example:
        >>> timm_patchup.hub.evaluate("USER/NAME")["clean"]["error"]
    """
    from ..data.source import DataError
    from ..evaluation.bench import EvaluationError
    from ..evaluation.cli import read_call
    from ..evaluation.run import run
    from ..sites import SiteError

    names = suites if isinstance(suites, str) else ",".join(suites)
    given = {"--data": data, "--data-dir": data_dir, "--limit": limit, "--batch-size": batch_size, "--seed": seed}
    flags = [f"{flag}={value}" for flag, value in given.items() if value is not None]
    with tempfile.TemporaryDirectory() as nowhere:
        call = [f"--model={find(model)}", f"--suite={names}", f"--output={output or nowhere}", *flags]
        try:
            results = run(read_call(call))
        except (RecipeError, DataError, EvaluationError, SiteError) as error:
            raise HubError(str(error), code=2) from error
    return {suite: next(iter(entries.values()))["values"] for suite, entries in results.suites.items()}
