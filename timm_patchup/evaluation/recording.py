"""Record what the sites of a model return in a forward pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..core.sites import resolve_sites, site_module


@contextmanager
def recorded(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
    """Append each site's outputs to its list while the block runs; take them with ``pop()`` after each pass."""
    seen: dict[str, list[Any]] = {name: [] for name in names}
    handles = [
        site_module(model, site).register_forward_hook(_recorder(seen[site.name]))
        for site in resolve_sites(model, names)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _recorder(outputs: list[Any]) -> Callable[[nn.Module, object, object], None]:
    def record(module: nn.Module, args: object, output: object) -> None:
        # Copied, because an in-place activation may follow.
        outputs.append(output.detach().clone() if isinstance(output, Tensor) else output)

    return record
