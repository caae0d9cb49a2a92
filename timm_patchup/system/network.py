"""The Hub seen from this machine: the form of its names, and errors of its client explained in one line.

Whatever several layers need to know about the Hub is here. Errors of a push are explained in ``hub/failures.py``.
"""

import re
from collections.abc import Sequence
from typing import Literal

from ..errors import HubError, one_line
from .privacy import PrivateWords

# HTTP libraries of the Hub's client: it has changed them more than once.
_TRANSPORTS = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")


def is_repo_name(name: str) -> bool:
    """Return whether a name has the form USER/NAME, by the Hub's rules."""
    part = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?"
    doubled = ".." in name or "--" in name
    return len(name) <= 96 and not doubled and re.fullmatch(f"{part}/{part}", name) is not None


def error_chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and its causes, newest first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def is_unreachable(chain: Sequence[BaseException]) -> bool:
    """Return whether there was no answer: the client is offline, or its transport failed."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    plain = (ConnectionError, TimeoutError, LocalEntryNotFoundError, OfflineModeIsEnabled)
    return any(isinstance(e, plain) or type(e).__module__.split(".")[0] in _TRANSPORTS for e in chain)


def explain_hub_error(error: BaseException, repo: str, *, doing: Literal["load", "fetch"]) -> HubError:
    """Return the error to show for one that was raised while loading a model or fetching a dataset."""
    from huggingface_hub import errors

    if isinstance(error, HubError):
        return error
    chain = error_chain(error)
    if any(isinstance(e, errors.LocalTokenNotFoundError) for e in chain):
        return no_token()
    if doing == "fetch":
        return _not_fetched(error, repo)
    if isinstance(error, errors.HFValidationError):
        return HubError(f"{repo!r} is not a Hub name: expected USER/NAME")
    if isinstance(error, (errors.GatedRepoError, errors.RepositoryNotFoundError)):
        return HubError(f"{repo}: no such folder and no such model on the Hub, or no access to it: `hf auth login`")
    if isinstance(error, errors.RevisionNotFoundError):
        return HubError(f"{repo}: no such revision on the Hub: see its page for the names of branches and tags")
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        missing = f"{repo} has no config.json or model.safetensors"
        return HubError(f"{missing}: only safetensors are loaded, never pickles", retry=True)
    status = next((e.response.status_code for e in chain if isinstance(e, errors.HfHubHTTPError)), None)
    if status == 401:
        way = "make one at https://huggingface.co/settings/tokens"
        return HubError(f"the Hub does not accept the token: {way}", retry=True)
    if status is not None:
        return HubError(f"cannot load {repo}: the Hub answered with status {status}; try again later", retry=True)
    if is_unreachable(chain):
        way = "the Hub cannot be reached: check the path, or the network, HF_HUB_OFFLINE and HF_ENDPOINT"
        return HubError(f"{repo}: no such folder, not in the Hub's cache, and {way}", retry=True)
    text = PrivateWords().clean(" ".join(str(e) for e in chain))
    return HubError(f"cannot load {repo}: {type(error).__name__}: {text[:300]}", retry=True)


def no_token() -> HubError:
    """Return the error for a missing token."""
    return HubError("no Hub token: log in with `hf auth login` or set HF_TOKEN, with write access", retry=True)


def _not_fetched(error: BaseException, repo: str) -> HubError:
    if isinstance(error, OSError) and error.filename is not None:
        return HubError(f"cannot write the data: {error.strerror}", retry=True)
    problem = dataset_problem(error, repo)
    if problem is not None:
        return problem
    text = PrivateWords().clean(one_line(error))
    return HubError(f"cannot fetch dataset {repo}: {type(error).__name__}: {text[:300]}", retry=True)


def dataset_problem(error: BaseException, name: str) -> HubError | None:
    """Return why a dataset cannot be loaded from the Hub and what to do, None if the Hub is not the reason.

    Only a Hub that does not answer can be tried again: with a wrong name or without access, that does not help.
    """
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    chain = error_chain(error)
    page = f"https://huggingface.co/datasets/{name}"
    gated = any(isinstance(e, GatedRepoError) for e in chain)
    if gated or (isinstance(error, DatasetNotFoundError) and _is_gated(name)):
        return HubError(f"dataset {name} is gated: accept its terms at {page} and log in with `hf auth login`")
    if isinstance(error, (RepositoryNotFoundError, DatasetNotFoundError)):
        return HubError(f"no dataset {name} on the Hub, or no access to it: {page}")
    if is_unreachable(chain) or any(isinstance(e, HfHubHTTPError) for e in chain):
        way = "check the network, HF_HUB_OFFLINE and HF_ENDPOINT"
        return HubError(f"dataset {name} is not cached and the Hub cannot be reached: {way}", retry=True)
    return None


def _is_gated(name: str) -> bool:
    """Ask the Hub whether a dataset is gated: ``datasets`` raises the same error for a missing one, without a cause."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError

    try:
        HfApi().auth_check(name, repo_type="dataset")
    except GatedRepoError:
        return True
    except Exception:  # no answer to this question; the first error is shown
        return False
    return False
