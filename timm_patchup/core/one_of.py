"""Several methods, one of which acts on a batch: ``OneOf([HardPatchUp(), CutMix()], weights=[2, 1])``.

``OneOf`` is a value like every method. For each batch the mixer lets it choose a method and asks only that one, with
its own probability, sites and objective. ``make_methods`` and ``read_methods`` make one method or several from names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError, WrongType, brief
from . import sampling
from .functional import MethodObjective
from .method import Method, make_method, method_settings, read_method
from .settings import collecting, raise_together, setting


@dataclass(frozen=True)
class OneOf(Method):
    """Choose one of several methods per batch; each keeps its own settings and acts at its own sites only.

    Attributes:
        methods: the methods.
        weights: how often each has its turn, relative to the others.

    Example:
        >>> mix = Mixer(model, OneOf([HardPatchUp(), CutMix(), Mixup()], weights=[2, 1, 1]))
    """

    methods: Sequence[Method]
    weights: tuple[float, ...] | None = setting(None, "weight of each method; none for equal ones", above=0)
    prob: float = field(default=1.0, init=False, repr=False)  # each method has its own

    def __post_init__(self) -> None:
        if isinstance(self.methods, (str, Method)) or not all(isinstance(one, Method) for one in self.methods):
            raise WrongType(f"methods must be a list of methods such as HardPatchUp(), got {brief(self.methods)}")
        object.__setattr__(self, "methods", tuple(self.methods))
        super().__post_init__()
        object.__setattr__(self, "weights", self.weights or (1.0,) * len(self.methods))

    def contradictions(self) -> list[str]:
        if not self.methods:
            return ["methods is empty: give at least one method"]
        given = len(self.weights or self.methods)
        wrong = f"weights has {given} values for {len(self.methods)} methods: give one per method"
        return [wrong] * (given != len(self.methods))

    @property
    def members(self) -> tuple[Method, ...]:
        return tuple(member for method in self.methods for member in method.members)

    @property
    def needs_saliency(self) -> bool:  # type: ignore[override]
        return any(member.needs_saliency for member in self.members)

    @property
    def objective(self) -> MethodObjective:
        """The objective that all methods share; a batch uses the objective of the method that acts on it."""
        return self._shared("objective")

    @property
    def adds_loss(self) -> bool:
        """As for ``objective``."""
        return self._shared("adds_loss")

    def added_loss(self, unmixed: Callable[[], Tensor]) -> Tensor:
        raise UserError("this draw does not state its method, which adds to its loss: replay a Draw with draw.method")

    def _shared(self, name: str) -> Any:
        found = {getattr(member, name) for member in self.members}
        if len(found) > 1:
            raise UserError(
                f"the methods differ in their {name}, and this draw does not state its method: "
                f"replay a Draw with draw.method"
            )
        return found.pop()

    def choose(self, generator: torch.Generator) -> Method:
        assert self.weights is not None
        return self.methods[sampling.weighted(self.weights, generator)].choose(generator)

    def settings(self) -> dict[str, Any]:
        """Return names, weights and settings as plain values, in the order of the methods."""
        return {
            "methods": [method.name for method in self.methods],
            "weights": list(self.weights or ()),
            "settings": [method.settings() for method in self.methods],
        }


def make_methods(mix: str | Sequence[str], **settings: Any) -> Method:
    """Make one method of the registry, or ``OneOf`` several.

    Args:
        mix: one of ``list_methods()``, or a list of them.
        **settings: settings that differ from the defaults. Of several methods, each that has a setting takes it; those
            of one method are a mapping under its name. ``weights`` is how often each method has its turn.

    Raises:
        UserError: unknown method or setting, or a value outside of its range.

    Example:
        >>> make_methods(["hard_patchup", "cutmix"], weights=[2, 1], prob=0.5, hard_patchup={"gamma": 0.4}).methods[1]
        CutMix(prob=0.5, alpha=1.0)
    """
    if isinstance(mix, str):
        return make_method(mix, **settings)
    if not isinstance(mix, Sequence) or not all(isinstance(name, str) for name in mix):
        raise WrongType(
            f"a method is given by its name, such as 'hard_patchup', or several as a list of names, got "
            f"{brief(mix, 60)}; Mixer(model, method) takes a method itself"
        )
    weights = settings.pop("weights", None)
    methods = {name: make_method(name, **own) for name, own in split_settings(mix, settings).items()}
    return _join(methods, weights, called="weights")


def read_methods(mix: str | Sequence[str], values: Mapping[str, Any], *, weights: Any = None, prefix: str) -> Method:
    """Make one method or several from the values of a file or of flags, in which ``5e-1`` may be a word.

    Args:
        mix: one of ``list_methods()``, or a list of them.
        values: settings by name, the settings of one method under its name.
        weights: how often each of several methods has its turn.
        prefix: what the user writes in front of the names.

    Raises:
        UserError: everything that is wrong, in the user's words.
    """
    if isinstance(mix, str):
        by_method = {mix: values} if mix not in values else split_settings([mix], values, prefix=prefix)
    else:
        by_method = split_settings(mix, values, prefix=prefix)
    methods, errors = dict[str, Method](), list[UserError]()
    for name, own in by_method.items():
        with collecting(errors):
            methods[name] = read_method(name, own, prefix=prefix if isinstance(mix, str) else f"{name}.")
    raise_together(errors)
    return _join(methods, weights, called=f"{prefix}weights")


def split_settings(names: Sequence[str], values: Mapping[str, Any], *, prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return the settings of each method: a method's settings win over settings that several share.

    Raises:
        UserError: a setting that none of the methods has, or settings of another method.
    """
    known = {name: method_settings(name) for name in names}
    if len(known) < len(names):
        raise UserError(f"mix names a method twice: {', '.join(names)}")
    shared = {key: value for key, value in values.items() if key not in known}
    errors = []
    for key, value in shared.items():
        if isinstance(value, Mapping):
            errors.append(UserError(f"settings of {brief(key)}, which is not among the methods {', '.join(names)}"))
        elif not any(key in own for own in known.values()):
            every = sorted({prefix + other for own in known.values() for other in own})
            errors.append(
                UserError(f"{prefix}{key} is not a setting of {' or '.join(names)}; they have {', '.join(every)}")
            )
    for name in known:
        if not isinstance(values.get(name, {}), Mapping):
            errors.append(
                WrongType(f"settings of {name} must be a mapping of names to values, got {brief(values[name])}")
            )
    raise_together(errors)
    return {
        name: {key: value for key, value in shared.items() if key in own} | values.get(name, {})
        for name, own in known.items()
    }


def _join(methods: Mapping[str, Method], weights: Any, *, called: str) -> Method:
    if weights is not None and len(methods) > 1 and len(weights) != len(methods):
        raise UserError(f"{called} has {len(weights)} values for {len(methods)} methods: give one per method")
    if len(methods) > 1:
        return OneOf(tuple(methods.values()), weights)
    if weights is not None:
        raise UserError(f"{called} has no effect with one method: leave it out, or name several methods")
    if not methods:
        raise UserError("no method is named: give at least one")
    return next(iter(methods.values()))
