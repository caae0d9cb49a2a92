"""Errors that a user can fix, one line per problem. Importable from anywhere; imports nothing of this package.

``UserError`` is the base. If its ``retry`` is True, the call was right but the work could not be finished (exit code
1); otherwise the call was wrong and nothing was done (exit code 2, see ``cli/command.py``). Code that has to decide
something reads the fields of an error, never its text.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

_LONGEST_NAME = 200  # characters; comparing takes time that grows with the square, and no name is longer


class UserError(ValueError):
    """The call was wrong: everything that is wrong with it, one line per problem.

    Attributes:
        problems: the lines.
        retry: whether the same call may be tried again: it was right, but the work could not be finished.
        one_process: whether only this process of several has the error, so that no other one reports it; None until
            that is known.
    """

    retry = False
    one_process: bool | None = None

    def __init__(self, problems: str | Sequence[str], *, retry: bool = False) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        if retry:
            self.retry = True
        super().__init__("\n".join(self.problems))


class WrongType(UserError, TypeError):
    """A value of another type than its setting has."""


class NoEffect(UserError):
    """Settings that were changed although others disable them.

    Attributes:
        reasons: why each has no effect, by its name.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__([f"{name} has no effect {why}" for name, why in reasons.items()])


class SiteError(UserError):
    """A site of a model cannot be found or mixed.

    Attributes:
        site: its name.
        reason: why, in a sentence without its full stop.
        usable: names of the sites of the same model that can be mixed; empty if the reason names them.
    """

    def __init__(self, site: str, reason: str, usable: Sequence[str] = ()) -> None:
        self.site, self.reason, self.usable = site, reason, tuple(usable)
        super().__init__(self._line(f"sites={list(usable)}"))

    def for_caller(self, name: str) -> str:
        """Return the line in the words of a caller who gives sites by this name, a key or a flag."""
        return self._line(f"{name} {' '.join(self.usable)}")

    def _line(self, call: str) -> str:
        return f"{self.reason}. Give {call}, which can be mixed, or name other modules" if self.usable else self.reason


class DataError(UserError):
    """Data that is missing, out of reach, damaged or does not fit the recipe."""


class HubError(UserError):
    """A model cannot be exported, pushed or loaded as asked."""

    def __init__(self, message: str, *, retry: bool = False) -> None:
        super().__init__(one_line(message), retry=retry)


class Failed(UserError):
    """The call was right, but the work could not be finished."""

    retry = True


class CheckpointError(Failed):
    """A checkpoint that cannot be used, and why."""


class RunError(Failed):
    """A run that ended early."""


class OtherProcessFailed(RunError):
    """Another process of the same launch failed, and reports why."""

    one_process = False

    def __init__(self) -> None:
        super().__init__("stopped, because another process failed: its line has the reason")


class Stopped(RunError):
    """Ctrl-C or a scheduler's request, after the checkpoint was written.

    Attributes:
        signal: number of the signal.
    """

    one_process = False  # all have agreed on it

    def __init__(self, number: int, checkpoint: str) -> None:
        self.signal = number
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name}; checkpoint {checkpoint}: resume the run (--resume)")


class NonFinite(RunError):
    """The loss became infinite or NaN."""

    one_process = False  # all have agreed on it

    def __init__(self, update: int, checkpoint: str) -> None:
        super().__init__(
            f"the loss is not finite at update {update}; last good checkpoint: {checkpoint}. Start again with a lower "
            f"lr, with warmup_epochs or clip_grad, or without amp: a resumed run keeps its recipe"
        )


class NoResult(RunError):
    """The test loss is infinite or NaN."""

    one_process = False  # all have the same sum

    def __init__(self, loss: float) -> None:
        super().__init__(f"the test loss is {loss}, so there is no result: start again with a lower lr or without amp")


def one_line(error: BaseException | str, length: int | None = None) -> str:
    """Return the text of an error without line breaks, cut after ``length`` characters."""
    return " ".join(str(error).split())[:length]


def brief(value: Any, length: int = 100) -> str:
    """Return a value as an error line shows it: as Python writes it, without line breaks, cut if it is long.

    Example:
        >>> brief(list(range(1000)), 20)
        '[0, 1, 2, 3, 4, 5...'
    """
    text = one_line(repr(value))
    return text if len(text) <= length else f"{text[: length - 3]}..."


def nearest(name: Any, known: Iterable[str]) -> str:
    """Return the end of a line about an unknown name: ``"; did you mean a or b?"``, empty if nothing is near.

    Example:
        >>> nearest("epoch", ["epochs", "lr"])
        '; did you mean epochs?'
    """
    near = [] if len(str(name)) > _LONGEST_NAME else get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def unknown(kind: str, name: Any, known: Iterable[str]) -> UserError:
    """Return the error for a name that does not exist, with those that do and the nearest of them.

    Example:
        >>> unknown("mode", "hrad", ["hard", "soft"]).problems
        ["unknown mode 'hrad': choose from hard, soft; did you mean hard?"]
    """
    names = list(known)
    if not names:
        return UserError(f"unknown {kind} {brief(name)}: there are none")
    return UserError(f"unknown {kind} {brief(name)}: choose from {', '.join(names)}{nearest(name, names)}")
