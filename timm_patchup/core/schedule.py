"""When a method acts, by the epoch: switched off from some epoch on, and settings that rise over the first ones.

A ``Schedule`` is a value and keeps no state: what holds follows from the epoch alone, so that a run resumes exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..errors import NoEffect, UserError
from .method import Method
from .one_of import OneOf
from .settings import CheckedSettings, setting, settings_of


@dataclass(frozen=True, kw_only=True)
class Schedule(CheckedSettings):
    """What changes from epoch to epoch, counted from 0.

    Args:
        off_epoch: no batch is altered from this epoch on; 0 for never.
        warmup_epochs: the settings named by ``warmup`` rise linearly from 0 in this many epochs; 0 for none.
        warmup: names of settings of the method that may be 0, such as prob, gamma or drop_prob.

    Example:
        >>> mix = PatchUp(model, schedule=Schedule(off_epoch=80, warmup_epochs=10, warmup=["gamma"]))
        >>> mix.set_epoch(epoch)  # at the start of every epoch
    """

    off_epoch: int = setting(0, "no batch is altered from this epoch on; 0 for never", low=0)
    warmup_epochs: int = setting(0, "the settings under warmup rise linearly from 0 in this many epochs", low=0)
    warmup: tuple[str, ...] = setting(("prob",), "settings that rise, such as prob, gamma or drop_prob")

    @property
    def is_needed(self) -> bool:
        """Whether anything depends on the epoch."""
        return bool(self.off_epoch or self.warmup_epochs)

    def is_off(self, epoch: float) -> bool:
        """Return whether batches are left as they are in an epoch."""
        return bool(self.off_epoch) and epoch >= self.off_epoch

    def method_at(self, method: Method, epoch: float) -> Method:
        """Return a method as it is in an epoch; of several, each with those settings that it has."""
        if epoch >= self.warmup_epochs:
            return method
        if isinstance(method, OneOf):
            return replace(method, methods=[self.method_at(member, epoch) for member in method.methods])
        names = [name for name in self.warmup if name in settings_of(type(method))]
        risen: dict[str, Any] = {name: getattr(method, name) * epoch / self.warmup_epochs for name in names}
        return replace(method, **risen)

    def check(self, method: Method, *, prefix: str = "") -> None:
        """Raise UserError if a setting is to rise that no method has, or that cannot be 0."""
        if problems := list(self._problems(method, prefix)):
            raise UserError(problems)

    def _problems(self, method: Method, prefix: str) -> Iterator[str]:
        for name in self.warmup if self.warmup_epochs else ():
            found = [known[name] for known in map(settings_of, map(type, method.members)) if name in known]
            if not found:
                names = " or ".join(member.name for member in method.members)
                yield f"{prefix}warmup: {name} is not a setting of {names}"
            elif any(known.types != (float,) or known.low != 0 for known in found):
                yield f"{prefix}warmup: {name} cannot rise from 0, only numbers from 0 on can: prob, gamma, drop_prob"
            else:
                yield from (f"{prefix}warmup: {problem}" for problem in _without_effect(method, name))


def _without_effect(method: Method, name: str) -> list[str]:
    """Return why a setting has no effect, in any of several methods."""
    problems = []
    for member in (one for one in method.members if name in settings_of(type(one))):
        try:
            replace(member, **{name: 0.0})
        except NoEffect as error:
            problems += error.problems
    return problems
