"""What data and weights share about the Hub: the form of its names, and its client's errors told in one line."""

import re
from collections.abc import Sequence
from typing import Literal

from ..errors import HubError, HubFailed
from .privacy import Private

# Whatever the Hub's client uses for its requests: it has changed more than once.
_TRANSPORTS = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")


def is_repo_name(name: str) -> bool:
    """Whether a name has the form USER/NAME."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def error_chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and what led to it, newest first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def is_unreachable(chain: Sequence[BaseException]) -> bool:
    """Whether no answer came: the client is offline, or its transport failed."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    plain = (ConnectionError, TimeoutError, LocalEntryNotFoundError, OfflineModeIsEnabled)
    return any(isinstance(e, plain) or type(e).__module__.split(".")[0] in _TRANSPORTS for e in chain)


def data_set_trouble(error: BaseException, name: str) -> str | None:
    """Return why a data set of the Hub cannot be had and the way to it, None where the Hub is not the reason."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    chain = error_chain(error)
    page = f"https://huggingface.co/datasets/{name}"
    # datasets hides the client's error behind its own, which says so.
    told = isinstance(error, DatasetNotFoundError) and "gated" in str(error).lower()
    if told or any(isinstance(e, GatedRepoError) for e in chain):
        return f"data set {name} is gated: accept its terms at {page}, log in with `hf auth login`"
    if isinstance(error, (RepositoryNotFoundError, DatasetNotFoundError)):
        return f"no data set {name} on the Hub, or no right to see it: {page}"
    if is_unreachable(chain) or any(isinstance(e, HfHubHTTPError) for e in chain):
        way = "check the network (HF_HUB_OFFLINE, HF_ENDPOINT)"
        return f"data set {name} is not in the cache and the Hub cannot be reached or hung up: {way}"
    return None


def explain_hub_error(error: BaseException, repo: str, *, doing: Literal["load", "fetch"]) -> HubError:
    """Return the error to show for whatever happened while a model was loaded or data fetched."""
    from huggingface_hub import errors

    if isinstance(error, HubError):
        return error
    chain = error_chain(error)
    if any(isinstance(e, errors.LocalTokenNotFoundError) for e in chain):
        return HubFailed("no token of the Hub: log in with `hf auth login` or set HF_TOKEN")
    if doing == "fetch":
        return _not_fetched(error, repo)
    if isinstance(error, errors.HFValidationError):
        return HubError(f"{repo!r} is no name of the Hub: a model is USER/NAME")
    if isinstance(error, (errors.GatedRepoError, errors.RepositoryNotFoundError)):
        return HubFailed(f"{repo}: no such folder and no such model on the Hub, or no right to see it: hf auth login")
    if isinstance(error, errors.RevisionNotFoundError):
        return HubFailed(f"{repo}: no such revision on the Hub")
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return HubFailed(f"{repo} lacks config.json or model.safetensors: only safetensors are loaded, never a pickle")
    status = next((e.response.status_code for e in chain if isinstance(e, errors.HfHubHTTPError)), None)
    text = Private().clean(" ".join(str(e) for e in chain)).replace("\n", " ")
    if status == 401:
        return HubFailed("the Hub does not accept the token: make one at https://huggingface.co/settings/tokens")
    if status is not None:
        return HubFailed(f"{repo}: the Hub answers with status {status}, try again later: {text[:300]}")
    if is_unreachable(chain):
        return HubFailed(f"{repo} is not in the cache and the Hub cannot be reached: check the network, HF_ENDPOINT")
    return HubFailed(f"load of {repo} failed: {type(error).__name__}: {text[:300]}")


def _not_fetched(error: BaseException, repo: str) -> HubError:
    if isinstance(error, OSError) and error.filename is not None:
        return HubFailed(f"cannot write the data: {error.strerror}")
    trouble = data_set_trouble(error, repo)
    if trouble is not None:
        return HubFailed(trouble)
    text = Private().clean(" ".join(str(error).split()))
    return HubFailed(f"data set {repo} cannot be fetched: {type(error).__name__}: {text[:300]}")
