"""Errors of a push, explained in one line with the next step.

Errors of loading and fetching are in ``system/network.py``, since lower layers load and fetch, too.
"""

from collections.abc import Sequence

from ..errors import HubError
from ..system.network import error_chain, is_unreachable, no_token
from ..system.privacy import PrivateWords

_QUOTA_STATUS = (402, 413, 507)
_QUOTA_WORDS = ("quota", "storage limit", "storage space", "payment required")
_AGAIN = "no partial upload, and finished files are not sent again: run the command again"


def explain_push_error(error: BaseException, repo: str) -> HubError:
    """Return the error to show for one that was raised while pushing."""
    from huggingface_hub import errors

    if isinstance(error, HubError):
        return error
    chain = error_chain(error)
    if any(isinstance(e, errors.LocalTokenNotFoundError) for e in chain):
        return no_token()
    if isinstance(error, errors.HFValidationError):
        return HubError(f"repo {repo!r} is not a Hub name: expected USER/NAME")
    answers = [e for e in chain if isinstance(e, errors.HfHubHTTPError)]
    if answers:
        return HubError(_explain_answer(answers, repo), retry=True)
    if is_unreachable(chain):
        why = "the Hub cannot be reached or closed the connection (HF_HUB_OFFLINE, network)"
        return HubError(f"{why}; {_AGAIN}", retry=True)
    return HubError(f"cannot push to {repo}: {type(error).__name__}: {_clean(chain)}", retry=True)


def _explain_answer(answers: Sequence[BaseException], repo: str) -> str:
    """Return the line for an answer of the Hub: its status, or a message about storage, which has no status."""
    status = answers[0].response.status_code  # type: ignore[attr-defined]
    said = " ".join(getattr(answer, "server_message", None) or "" for answer in answers).lower()
    if status in _QUOTA_STATUS or any(word in said for word in _QUOTA_WORDS):
        way = "free some or get more at https://huggingface.co/settings/billing, or choose another repo"
        return f"the account of {repo} has no storage left: {way}, then run the command again"
    if status == 401:
        return "the Hub does not accept the token: make one at https://huggingface.co/settings/tokens, `hf auth login`"
    if status in (403, 404):  # the Hub answers 404 without access, too
        way = "use a token with write access or another repo, or open a pull request (create_pr)"
        return f"no write access to {repo}: {way}"
    if status in (409, 412):
        return f"{repo} was changed by someone else meanwhile; nothing was overwritten: check it, then push again"
    if status == 429:
        return f"too many requests to the Hub; {_AGAIN} in a few minutes"
    if status >= 500:
        return f"the Hub has a problem (status {status}); {_AGAIN} later"
    return f"the Hub refused the push (status {status}): {_clean(answers)}"


def _clean(chain: Sequence[BaseException]) -> str:
    return PrivateWords().clean(" ".join(str(e) for e in chain)).replace("\n", " ")[:300]
