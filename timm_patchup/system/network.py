"""What data and weights share about the Hub: the form of its names, and its client's errors told in one line."""

import re
from collections.abc import Sequence

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
