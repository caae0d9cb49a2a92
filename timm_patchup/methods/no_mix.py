"""No mixing: the baseline, with the targets, the loss and the switches of every other method."""

from dataclasses import dataclass, field

from ..core.method import Method, register_method


@register_method("none")
@dataclass(frozen=True, kw_only=True)
class NoMix(Method):
    """Leave every batch as it is; any model will do."""

    prob: float = field(default=0.0, init=False, repr=False)
