"""What the Hub's client raises, told in one line with the next step."""

from typing import Literal

from ..errors import HubError, HubFailed
from ..system.network import error_chain, explain_hub_error, is_unreachable
from ..system.privacy import Private

_QUOTA_STATUS = (402, 413, 507)
_QUOTA_WORDS = ("quota", "storage limit", "storage space", "payment required")
_AGAIN = "nothing is lost and what is up already is not sent twice: push again"


def explain(error: BaseException, repo: str, *, doing: Literal["push", "load", "fetch"]) -> HubError:
    """Return the error to show for whatever happened while talking to the Hub."""
    from huggingface_hub import errors

    if doing != "push":
        return explain_hub_error(error, repo, doing=doing)
    if isinstance(error, HubError):
        return error
    chain = error_chain(error)
    if any(isinstance(e, errors.LocalTokenNotFoundError) for e in chain):
        return no_token()
    if isinstance(error, errors.HFValidationError):
        return HubError(f"--repo is USER/NAME as the Hub allows it, got {repo!r}")
    status = next((e.response.status_code for e in chain if isinstance(e, errors.HfHubHTTPError)), None)
    text = Private().clean(" ".join(str(e) for e in chain)).replace("\n", " ")
    if status is not None:
        return HubFailed(_of_status(status, text, repo))
    if is_unreachable(chain):
        return HubFailed(f"the Hub cannot be reached or hung up (check the network, HF_HUB_OFFLINE); {_AGAIN}")
    if any(word in text.lower() for word in _QUOTA_WORDS):
        return HubFailed(_no_room(repo))
    return HubFailed(f"{doing} of {repo} failed: {type(error).__name__}: {text[:300]}")


def no_token() -> HubError:
    return HubFailed("no token of the Hub: log in with `hf auth login` or set HF_TOKEN, with the right to write")


def _of_status(status: int, text: str, repo: str) -> str:
    if status in _QUOTA_STATUS or any(word in text.lower() for word in _QUOTA_WORDS):
        return _no_room(repo)
    if status == 401:
        return "the Hub does not accept the token: make one at https://huggingface.co/settings/tokens, `hf auth login`"
    if status in (403, 404):  # what one may not see is not found
        way = "take a token with the right to write, another --repo, or propose it with --create-pr"
        return f"no right to write to {repo}: {way}"
    if status in (409, 412):
        return f"{repo} was changed by someone else meanwhile; nothing of it was overwritten: look, then push again"
    if status == 429:
        return f"the Hub asks to wait (too many requests); {_AGAIN} in some minutes"
    if status >= 500:
        return f"the Hub has trouble (status {status}); {_AGAIN} later"
    return f"the Hub refuses (status {status}): {text[:300]}"


def _no_room(repo: str) -> str:
    way = "free some or get more at https://huggingface.co/settings/billing, or choose another --repo, then push again"
    return f"the account of {repo} has no room left: {way}"
