"""Push an exported folder to the Hub: one commit, or none.

The content of a repository is checked first and not overwritten by default. The commit names its parent, so
that no concurrent commit is lost. Large files are uploaded before it and not sent twice.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import HubError
from ..runs.folder import OWN_FILES
from ..runs.load import load, read_config
from ..runs.weights import WEIGHTS
from ..system.network import is_repo_name, no_token
from ..system.privacy import PrivateWords
from .card import REPO_PLACEHOLDER, REPORT
from .export import is_export
from .export_files import REPORT_SUFFIXES
from .failures import explain_push_error

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# Files that the Hub itself puts into a new repository.
HUB_DEFAULT_FILES = frozenset({".gitattributes", ".gitignore"})


@dataclass(frozen=True)
class Target:
    """The state of a repository before the push.

    Attributes:
        commit: the newest commit of the branch, None if there is none.
        digests: SHA-256 of large files and git ids of small ones, by name.
        fresh: whether the branch has only the Hub's default files.
    """

    commit: str | None
    digests: dict[str, str]
    fresh: bool


def push(
    out_dir: str | Path,
    repo: str,
    *,
    private: bool = False,
    revision: str | None = None,
    create_pr: bool = False,
    overwrite: bool = False,
) -> str:
    """Push an exported folder to the Hub in one commit.

    Args:
        out_dir: a folder written by ``export``; its README.md may have been edited.
        repo: ``USER/NAME``, created if it does not exist.
        private: create a private repository; an existing public one is refused.
        revision: a branch other than main, created if it does not exist.
        create_pr: open a pull request instead of committing.
        overwrite: replace existing files. Files that no export writes are kept.

    Returns:
        The URL of the commit or the pull request, or of the repository if it is up to date.

    Raises:
        HubError: in one line, with the next step. Folder and repository are unchanged.

    Example:
        >>> push("output/for_the_hub", "me/preactresnet8_patchup", private=True)
    """
    folder = Path(out_dir)
    if not is_export(folder):
        raise HubError(f"{folder} is not an export: make one with timm_patchup.hub.export(run_dir, out_dir)")
    if not is_repo_name(repo):
        raise HubError(f"repo must be USER/NAME, got {repo!r}")
    load(folder)  # an edited export may no longer fit its weights, and timm drops a classifier silently
    files = files_of(folder, repo)
    _refuse_secrets(files)
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise no_token()
    api = HfApi(library_name="timm_patchup")
    try:
        api.whoami()
        target = _find(api, repo, private=private, revision=revision, create_pr=create_pr)
        changed = [name for name, content in files.items() if target.digests.get(name) not in _digests(content)]
        stale = [name for name in target.digests if _is_ours(name) and name not in files]
        if not changed and not (stale and overwrite):
            return f"{api.endpoint}/{repo}"
        if not (target.fresh or create_pr or overwrite):
            _refuse_other(api, repo, files, target, changed)
        operations = _operations({name: files[name] for name in changed}, stale if overwrite else [])
        done = api.create_commit(
            repo,
            operations,
            commit_message="Weights, configuration, recipe, results and model card",
            revision=revision,
            create_pr=create_pr,
            parent_commit=target.commit,
        )
        return done.pr_url or done.commit_url
    except Exception as error:
        raise explain_push_error(error, repo) from error


def files_of(folder: Path, repo: str) -> dict[str, bytes | Path]:
    """Return the files to push, by name: the card with its repository filled in, the others as paths."""
    files: dict[str, bytes | Path] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and _is_ours(name):
            files[name] = path
    card = (folder / "README.md").read_text(encoding="utf-8")
    files["README.md"] = card.replace(f"hf-hub:{REPO_PLACEHOLDER}", f"hf-hub:{repo}").encode()
    return files


def _refuse_secrets(files: dict[str, bytes | Path]) -> None:
    """Raise HubError if a token or a private path was added to the folder after the export."""
    private = PrivateWords()
    for name, content in files.items():
        if name != WEIGHTS and private.secret_in(content if isinstance(content, bytes) else content.read_bytes()):
            raise HubError(f"{name} contains a token or a path of this machine: remove it, then push again")


def _is_ours(name: str) -> bool:
    """Return whether exports write a file of this name: nothing else is pushed."""
    own = ("config.json", "README.md", *OWN_FILES)
    return name in own or (name.startswith(f"{REPORT}/") and "/." not in name and name.endswith(REPORT_SUFFIXES))


def _find(api: "HfApi", repo: str, *, private: bool, revision: str | None, create_pr: bool) -> Target:
    """Return the state of the repository and its branch, created if they do not exist."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        main = api.model_info(repo, files_metadata=True)
    except RepositoryNotFoundError:
        if create_pr:
            why = "does not exist, so there is nothing to propose to"
            raise HubError(f"{repo} {why}: push without create_pr", retry=True) from None
        api.create_repo(repo, private=private or None, exist_ok=True)
        main = api.model_info(repo, files_metadata=True)
    if private and not main.private:
        way = "make it private in its settings, choose another repo, or leave out private"
        raise HubError(f"{repo} exists and is public: {way}", retry=True)
    if revision is None:
        return _target(main)
    try:
        return _target(api.model_info(repo, revision=revision, files_metadata=True))
    except RevisionNotFoundError:
        if create_pr:
            raise HubError(f"{repo} has no branch {revision} to propose to: leave out revision", retry=True) from None
        # From the first commit, which is the Hub's own: an interrupted push leaves an empty branch.
        first = api.list_repo_commits(repo)[-1].commit_id
        api.create_branch(repo, branch=revision, revision=first)
        return replace(_target(api.model_info(repo, revision=revision, files_metadata=True)), fresh=True)


def _target(info: Any) -> Target:
    siblings = info.siblings or []
    digests = {file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in siblings}
    return Target(info.sha, digests, fresh=not digests.keys() - HUB_DEFAULT_FILES)


def _digests(content: bytes | Path) -> tuple[str, str]:
    """Return the ids that the Hub may have for a file: the SHA-256 of its content, and git's id."""
    if isinstance(content, bytes):
        header = f"blob {len(content)}\0".encode()
        return hashlib.sha256(content).hexdigest(), hashlib.sha1(header + content).hexdigest()
    large, small = hashlib.sha256(), hashlib.sha1(f"blob {content.stat().st_size}\0".encode())
    with content.open("rb") as file:
        while chunk := file.read(1 << 20):
            large.update(chunk)
            small.update(chunk)
    return large.hexdigest(), small.hexdigest()


def _refuse_other(api: "HfApi", repo: str, files: dict[str, bytes | Path], target: Target, changed: list[str]) -> None:
    """Raise HubError if a push would replace anything; adding files to the same model is allowed."""
    ways = "choose another repo, a new branch (revision), a pull request (create_pr), or overwrite it (overwrite)"
    if target.digests.get(WEIGHTS) not in _digests(files[WEIGHTS]):
        raise HubError(f"{repo} has {_content(api, repo, target)}: {ways}", retry=True)
    replaced = [name for name in changed if name in target.digests]
    if replaced:
        raise HubError(f"{repo} has this model with another {', '.join(replaced)}: {ways}", retry=True)


def _content(api: "HfApi", repo: str, target: Target) -> str:
    if "config.json" not in target.digests:
        return "other files"
    try:
        config = read_config(Path(api.hf_hub_download(repo, "config.json", revision=target.commit)).parent, repo)
    except HubError:
        return "a model that is not from timm"
    method = config.get("patchup", {}).get("method") if isinstance(config.get("patchup"), dict) else None
    return f"another model ({config['architecture']}{f', {method}' if isinstance(method, str) else ''})"


def _operations(added: dict[str, bytes | Path], removed: list[str]) -> list[Any]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    adding = [
        CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
        for name, content in added.items()
    ]
    return [*adding, *(CommitOperationDelete(name, is_folder=False) for name in removed)]
