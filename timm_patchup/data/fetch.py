"""Download the files of single splits from the Hub.

``datasets`` downloads every split of a dataset to open one; the test set is often only a tenth of the data.
"""

from collections.abc import Sequence
from pathlib import Path

from ..errors import HubError
from ..recipe.parts import DataSpec
from ..system.network import explain_hub_error
from .source import HUB_PREFIX


def fetch_splits(data: DataSpec, splits: Sequence[str], out_dir: str | Path | None = None) -> Path:
    """Download the files of some splits and return their folder; cached files are used if the Hub is out of reach.

    Args:
        data: a dataset of the Hub.
        splits: names of its splits.
        out_dir: destination; None for the Hub's cache.

    Raises:
        HubError: the files cannot be downloaded, or are not named as ``datasets`` names them.
    """
    from huggingface_hub import snapshot_download

    repo = data.dataset.removeprefix(HUB_PREFIX)
    inside = f"{data.dataset_config}/" if data.dataset_config else ""
    wanted = [f"{inside}{deeper}{split}-*.parquet" for split in splits for deeper in ("", "*/")]
    try:
        where = None if out_dir is None else str(out_dir)
        folder = Path(snapshot_download(repo, repo_type="dataset", allow_patterns=wanted, local_dir=where))
    except Exception as error:
        raise explain_hub_error(error, repo, doing="fetch") from error
    for split in splits:
        if not any(folder.rglob(f"{split}-*.parquet")):
            files = f"{inside}{split}-*.parquet"
            raise HubError(f"dataset {repo} has no files {files}: its layout is not supported", retry=True)
    return folder
