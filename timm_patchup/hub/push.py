"""From an exported folder to the Hub: one commit, or none.

What lies in a repository is looked at first and is not overwritten unless asked. The commit names the one it was made
for, so nobody else's work is lost in between; large files go up before it and are not sent twice.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import HubError, HubFailed
from ..runs.load import read_config
from ..runs.weights import WEIGHTS
from ..system.network import is_repo_name
from ..system.privacy import Private
from .card import REPO_PLACEHOLDER, REPORT
from .export import REPORT_SUFFIXES, is_export
from .failures import explain, no_token

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# What the Hub or a form on its pages puts into a new repository.
_NOBODYS = frozenset({".gitattributes", ".gitignore"})


@dataclass(frozen=True)
class Target:
    """A repository as it was found.

    Args:
        commit: its newest commit on the branch, None where it is new.
        digests: for each file the SHA-256 of a large one, the git id of a small one.
        fresh: whether the branch holds nothing of its own.
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
        out_dir: a folder that ``export`` has written; its README.md may have been edited since.
        repo: ``USER/NAME``, made if it is not there.
        private: make it private; an existing public one is refused.
        revision: a branch other than main, made if it is not there.
        create_pr: propose the files in a pull request instead of committing them.
        overwrite: replace what is there. Files that no export writes are left as they are.

    Returns:
        The address of the commit or the pull request; of the repository, where all was there already.

    Raises:
        HubError: in one line, with what to do. The folder is as it was, the repository too.

    Example:
        >>> push("output/for_the_hub", "me/preactresnet8_patchup", private=True)
    """
    folder = Path(out_dir)
    if not is_export(folder):
        raise HubError(f"{folder} holds no export: make one with timm_patchup.hub.export(run_dir, out_dir)")
    if not is_repo_name(repo):
        raise HubError(f"--repo is USER/NAME, got {repo!r}")
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
        raise explain(error, repo, doing="push") from error


def files_of(folder: Path, repo: str) -> dict[str, bytes | Path]:
    """Return what goes up, by name: the card knows its repository now, large files are named by their path."""
    files: dict[str, bytes | Path] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and _is_ours(name):
            files[name] = path
    card = (folder / "README.md").read_text(encoding="utf-8")
    files["README.md"] = card.replace(f"hf-hub:{REPO_PLACEHOLDER}", f"hf-hub:{repo}").encode()
    return files


def _refuse_secrets(files: dict[str, bytes | Path]) -> None:
    """Raise HubError where a token or a private path was written into the folder after its export."""
    private = Private()
    for name, content in files.items():
        if name != WEIGHTS and private.secret_in(content if isinstance(content, bytes) else content.read_bytes()):
            raise HubError(f"{name} holds a token or a path of this machine: remove it, then push again")


def _is_ours(name: str) -> bool:
    """Whether a file is one that exports write: nothing else that lies in the folder goes up."""
    own = (WEIGHTS, "config.json", "recipe.yaml", "summary.csv", "results.json", "curves.png", "README.md")
    return name in own or (name.startswith(f"{REPORT}/") and "/." not in name and name.endswith(REPORT_SUFFIXES))


def _find(api: "HfApi", repo: str, *, private: bool, revision: str | None, create_pr: bool) -> Target:
    """Look at the repository and its branch; make what is not there."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        main = api.model_info(repo, files_metadata=True)
    except RepositoryNotFoundError:
        if create_pr:
            raise HubFailed(f"{repo} is not there to propose anything to: push without --create-pr") from None
        api.create_repo(repo, private=private or None, exist_ok=True)
        main = api.model_info(repo, files_metadata=True)
    if private and not main.private:
        way = "make it private in its settings, choose another --repo, or leave out --private"
        raise HubFailed(f"{repo} is there already and public: {way}")
    if revision is None:
        return _target(main)
    try:
        return _target(api.model_info(repo, revision=revision, files_metadata=True))
    except RevisionNotFoundError:
        if create_pr:
            raise HubFailed(f"{repo} has no branch {revision} to propose anything to: leave out --revision") from None
        # From the first commit, which is the Hub's own: a push that breaks off leaves a branch that is still empty.
        first = api.list_repo_commits(repo)[-1].commit_id
        api.create_branch(repo, branch=revision, revision=first)
        return replace(_target(api.model_info(repo, revision=revision, files_metadata=True)), fresh=True)


def _target(info: Any) -> Target:
    siblings = info.siblings or []
    digests = {file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in siblings}
    return Target(info.sha, digests, fresh=not digests.keys() - _NOBODYS)


def _digests(content: bytes | Path) -> tuple[str, str]:
    """Return the ids the Hub may know a file by: SHA-256 of its content, and git's id."""
    if isinstance(content, bytes):
        header = f"blob {len(content)}\0".encode()
        return hashlib.sha256(content).hexdigest(), hashlib.sha1(header + content).hexdigest()
    large, small = hashlib.sha256(), hashlib.sha1(f"blob {content.stat().st_size}\0".encode())
    with content.open("rb") as file:
        while piece := file.read(1 << 20):
            large.update(piece)
            small.update(piece)
    return large.hexdigest(), small.hexdigest()


def _refuse_other(api: "HfApi", repo: str, files: dict[str, bytes | Path], target: Target, changed: list[str]) -> None:
    """Raise HubError where a push would replace anything; files that are added to the same model are welcome."""
    ways = "choose another --repo, a new branch with --revision, a proposal with --create-pr, or --overwrite"
    if target.digests.get(WEIGHTS) not in _digests(files[WEIGHTS]):
        raise HubFailed(f"{repo} holds {_what_is_there(api, repo, target)}: {ways}")
    replaced = [name for name in changed if name in target.digests]
    if replaced:
        raise HubFailed(f"{repo} holds this model with another {', '.join(replaced)}: --overwrite replaces, or {ways}")


def _what_is_there(api: "HfApi", repo: str, target: Target) -> str:
    if "config.json" not in target.digests:
        return "other files"
    try:
        config = read_config(Path(api.hf_hub_download(repo, "config.json", revision=target.commit)).parent, repo)
    except HubError:
        return "a model that is not timm's"
    method = config.get("patchup", {}).get("method") if isinstance(config.get("patchup"), dict) else None
    return f"another model ({config['architecture']}{f', {method}' if isinstance(method, str) else ''})"


def _operations(added: dict[str, bytes | Path], removed: list[str]) -> list[Any]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    adding = [
        CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
        for name, content in added.items()
    ]
    return [*adding, *(CommitOperationDelete(name, is_folder=False) for name in removed)]
