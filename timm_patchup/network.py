"""What errors of the Hub's client and its transport have in common, for the lines that explain them."""

from collections.abc import Sequence

# Whatever the Hub's client uses for its requests: it has changed more than once.
_TRANSPORTS = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")


def error_chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and what led to it, newest first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def is_transport_trouble(chain: Sequence[BaseException]) -> bool:
    """Whether a transport failed before any answer came."""
    return any(type(error).__module__.split(".")[0] in _TRANSPORTS for error in chain)
