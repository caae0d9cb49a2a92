"""Features altered under a mask: mixed with a partner's, which is PatchUp's operation (eq. 3 to 5), or erased.

``mix_features`` is linear in the features, and its gradient is the same operation with the inverse permutation.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Features of a sample for each thread: of fewer, torch gives a thread no part, and a call per sample costs more than it
# saves.
_LARGE_SAMPLE = 2**15


def mix_features(
    x: Tensor,
    changed: Tensor,
    partner: Tensor,
    *,
    lam: Tensor | float | None = None,
    inverse: Tensor | None = None,
) -> Tensor:
    """Swap (hard) or interpolate (soft) the altered features of every sample with those of its partner.

    The gradient is the same operation with the inverse permutation, so backward needs the mask and the two index
    vectors (and the scalar ``lam``) and no activation at all. Dtype and memory format of ``x`` are kept.

    Args:
        x: (B, ...), features.
        changed: bool, or uint8 of 0 and 1, (1, ...) for one mask per batch or (B, ...) for one per sample; broadcasts
            against ``x``. Or float in [0, 1]: how much of each feature is altered.
        partner: int64, (B,), a permutation: ``partner[i]`` is the sample that sample ``i`` is mixed with.
        lam: a number or a tensor in [0, 1], 0-d or (B,) for one per sample; None or the number 0 swaps.
        inverse: int64, (B,), the inverse of ``partner``; computed if not given.

    Returns:
        The shape of ``x``: ``x`` where not changed, else ``lam * x + (1 - lam) * x[partner]``.

    Example:
        >>> x = torch.arange(4.0).reshape(2, 1, 1, 2)
        >>> changed = torch.tensor([True, False]).reshape(1, 1, 1, 2)
        >>> mix_features(x, changed, torch.tensor([1, 0])).flatten().tolist()
        [2.0, 1.0, 0.0, 3.0]
    """
    if inverse is None:
        inverse = partner.argsort()
    if not isinstance(lam, Tensor):
        lam = torch.full((), lam, dtype=torch.float32, device=x.device) if lam else None
    elif lam.ndim == 1:
        lam = lam.reshape(-1, *(1,) * (x.ndim - 1))
    if torch.compiler.is_compiling():
        return _MixInGraph.apply(x, like_memory(changed, x), partner, inverse, lam)
    return _Mix.apply(x, _without_bytes(changed), partner, inverse, lam)


def erase_features(x: Tensor, changed: Tensor, *, scale: Tensor) -> Tensor:
    """Set the altered features of every sample to zero and multiply the others by ``scale``.

    The product is linear in ``x``, so backward keeps the weights, which are as small as the mask, or the mask itself if
    every feature has its own, and no activation.
    Dtype and memory format of ``x`` are kept.

    Args:
        x: (B, ...), features.
        changed: bool, or uint8 of 0 and 1, (1, ...) for one mask per batch or (B, ...) for one per sample; broadcasts
            against ``x``. Or float in [0, 1]: how much of each feature is altered.
        scale: float, 0-d: 1 only erases, 1 / p_u keeps the expected sum of the features.

    Returns:
        The shape of ``x``: 0 where changed, else ``scale * x``.
    """
    if not torch.compiler.is_compiling():
        changed = _without_bytes(changed)
    if changed.dtype is torch.bool and changed.shape == x.shape:  # the weights would be as large as the features
        return (x * scale.to(x.dtype)).masked_fill(changed, 0.0)
    return x * ((1 - changed.to(x.dtype)) * scale.to(x.dtype))


class _MixInGraph(torch.autograd.Function):
    """Mixing as torch.compile takes it on every release: without what torch.func needs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, changed: Tensor, partner: Tensor, inverse: Tensor, lam: Tensor | None) -> Tensor:
        ctx.save_for_backward(changed, partner, inverse, lam)
        return _blend(x, changed, partner, lam)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _mix_back(grad, *ctx.saved_tensors), None, None, None, None


class _Mix(torch.autograd.Function):
    """Mixing in eager code, also under the transforms of torch.func."""

    @staticmethod
    def forward(x: Tensor, changed: Tensor, partner: Tensor, inverse: Tensor, lam: Tensor | None) -> Tensor:
        blend = _blend_on_cpu if x.device.type == "cpu" else _blend
        return blend(x, like_memory(changed, x), partner, lam)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _mix_back(grad, *ctx.saved_tensors), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: None) -> Tensor:
        return _Mix.apply(tangent, *ctx.saved_tensors)  # it is linear in x

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        x: Tensor,
        changed: Tensor,
        partner: Tensor,
        inverse: Tensor,
        lam: Tensor | None,
    ) -> tuple[Tensor, int]:
        if any(dim is not None for dim in dims[2:]):
            raise NotImplementedError("mix_features under vmap: map over x and changed; partner and lam are for all")
        # The mapped dimension goes behind that of the samples, as one more of the features.
        x = x.unsqueeze(1).expand(-1, info.batch_size, *x.shape[1:]) if dims[0] is None else x.movedim(dims[0], 1)
        changed = changed.unsqueeze(1) if dims[1] is None else changed.movedim(dims[1], 1)
        lam = lam.unsqueeze(1) if lam is not None and lam.ndim else lam
        return _Mix.apply(x, changed, partner, inverse, lam), 1


def _mix_back(grad: Tensor, changed: Tensor, partner: Tensor, inverse: Tensor, lam: Tensor | None) -> Tensor:
    """Return the gradient of the features, itself differentiable."""
    if changed.shape[0] == 1 and (lam is None or lam.ndim == 0):
        # In a graph the mask has its memory format already: torch 2.4 traces no question about it in a backward pass.
        function = _MixInGraph if torch.compiler.is_compiling() else _Mix
        return function.apply(grad, changed, inverse, partner, lam)
    # A mask or lam per sample travels with the sample: what was taken from j goes back to j under i's mask.
    given_away = grad * _partner_weight(changed, lam, grad.dtype)
    return grad - given_away + given_away[inverse]


def _blend(x: Tensor, changed: Tensor, partner: Tensor, lam: Tensor | None) -> Tensor:
    """Mix in a few operations on the whole batch, which torch.compile fuses into one."""
    own, other = x, x[partner]  # indexing keeps channels_last, index_select does not
    if changed.dtype.is_floating_point:
        return torch.lerp(own, other, _partner_weight(changed, lam, x.dtype))
    if lam is not None:
        other = torch.lerp(other, own, lam.to(x.dtype))
    # Inductor makes vectors of bytes if they are compared as floats.
    return torch.where(changed if changed.dtype is torch.bool else changed.to(x.dtype) != 0, other, own)


def _blend_on_cpu(x: Tensor, changed: Tensor, partner: Tensor, lam: Tensor | None) -> Tensor:
    """Mix into one new buffer: there, memory costs more than arithmetic.

    ``where`` is not vectorised. ``lerp`` is, and returns its ends exactly at the weights 0 and 1, as long as their
    difference is finite.
    """
    weight = _partner_weight(changed, lam, x.dtype)
    mixed = torch.empty_like(x)
    if x[0].numel() < _LARGE_SAMPLE * torch.get_num_threads():
        torch.index_select(x, 0, partner, out=mixed)
        return torch.lerp(x, mixed, weight, out=mixed)
    # Sample by sample saves the gather.
    samples, outputs, weights = x.unbind(), mixed.unbind(), weight.unbind()
    for own, other in _along_cycles(partner.tolist()):
        torch.lerp(samples[own], samples[other], weights[own % len(weights)], out=outputs[own])
    return mixed


def _along_cycles(partner: list[int]) -> Iterator[tuple[int, int]]:
    """Yield every sample and its partner, and the partner next, while its features are still in the cache."""
    done = [False] * len(partner)
    for start in range(len(partner)):
        sample = start
        while not done[sample]:
            done[sample] = True
            yield sample, partner[sample]
            sample = partner[sample]


def _partner_weight(changed: Tensor, lam: Tensor | None, dtype: torch.dtype) -> Tensor:
    if changed.dtype is torch.bool:
        changed = changed.view(torch.uint8)  # torch converts bytes as vectors, and booleans one by one
    weight = changed.to(dtype)
    return weight if lam is None else weight * (1 - lam).to(dtype)


def _without_bytes(changed: Tensor) -> Tensor:
    """Return a mask of bytes, which is one for graphs, as bool."""
    return changed.view(torch.bool) if changed.dtype is torch.uint8 else changed


def like_memory(changed: Tensor, x: Tensor) -> Tensor:
    """Give the mask of an NCHW map the memory format of ``x``: else the output loses channels_last, reads scatter."""
    if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return changed.contiguous(memory_format=torch.channels_last)
    return changed
