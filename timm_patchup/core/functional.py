"""The maths of PatchUp as pure functions: they take what was drawn, draw nothing and never change their inputs.

In the paper's order: the binary mask (eq. 2), the operation on features (eq. 3 to 5), the targets (eq. 7 and 8) and the
learning objective (eq. 6). Only torch is imported here.

Two conventions hold everywhere. ``changed`` is the paper's ``1 - M``: True where features are altered. ``lam`` is the
weight of a sample's own features inside the altered region; 0 or ``None`` is a swap.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import sqrt
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Objective = Literal["paper", "l1", "l2"]
MethodObjective = Literal["paper", "l1", "l2", "authors"]  # what a method may ask for: see ``Method.objective``
# Features of a sample for each thread: of fewer, torch gives a thread no part, and a call per sample costs more than it
# saves.
_LARGE_SAMPLE = 2**15


def fit_block(block_size: int, height: int, width: int) -> tuple[int, int]:
    """Return the block's height and width on a map: a block larger than the map is as large as the map."""
    return min(block_size, height), min(block_size, width)


def seed_rate(gamma: float, block_size: int, height: int, width: int) -> float:
    """Return gamma_adj (eq. 2), the rate at which single features seed a block, capped at 1.

    The paper writes it for square maps; area over block area over valid region is the same for any H x W.
    """
    block_height, block_width = fit_block(block_size, height, width)
    valid = (height - block_height + 1) * (width - block_width + 1)
    return min(1.0, gamma * height * width / (block_height * block_width * valid))


def expected_coverage(rate: float, block_size: int, height: int, width: int) -> float:
    """Return the expected share of a map inside blocks if every feature seeds one with this rate."""
    rows, columns = (_seeds_per_place(block_size, size) for size in (height, width))
    counts = torch.outer(rows, columns)
    return float((1.0 - (1.0 - torch.tensor(rate, dtype=torch.float64, device="cpu")) ** counts).mean())


@lru_cache(maxsize=256)
def exact_seed_rate(gamma: float, block_size: int, height: int, width: int) -> float:
    """Return the rate at which blocks cover gamma of the map on average, whatever its size.

    gamma_adj (eq. 2) neglects that blocks overlap and are clipped at the border: it covers less than gamma of a large
    map and nearly all of one that is hardly larger than a block. The exact rate r solves mean(1 - (1 - r) ** n) = gamma
    over all places, each of which n seeds can cover.
    """
    if gamma in (0.0, 1.0):
        return gamma
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if expected_coverage(middle, block_size, height, width) < gamma else (low, middle)
    return (low + high) / 2.0


def _seeds_per_place(block_size: int, size: int) -> Tensor:
    """Return how many seeds along a side can cover each of its places: float64, (size,)."""
    length = min(block_size, size)
    place = torch.arange(size, dtype=torch.float64, device="cpu")
    before, after = length // 2, (length - 1) // 2
    return (place + before).clamp(max=size - 1) - (place - after).clamp(min=0) + 1


def grow_blocks(seeds: Tensor, block_size: int) -> Tensor:
    """Grow every seed to a block: a stride-1 max-pool of the seeds, done exactly with a few shifted ORs.

    A block of even size extends one feature further up and left than down and right, as in timm's DropBlock.

    Args:
        seeds: bool, (..., H, W).
        block_size: side length of the blocks, at least 1; cut to the map if the map is smaller.

    Returns:
        bool, the shape of ``seeds``: True inside blocks.
    """
    height, width = seeds.shape[-2:]
    block_height, block_width = fit_block(block_size, height, width)
    padding = ((block_width - 1) // 2, block_width // 2, (block_height - 1) // 2, block_height // 2)
    padded = F.pad(seeds.reshape(-1, height, width), padding)
    # In one long row every shift is a whole read of memory; the padding keeps blocks from reaching the next line.
    row = padded.flatten()
    for length, step in ((block_width, 1), (block_height, padded.shape[-1])):
        covered = 1
        while covered < length:
            further = min(covered, length - covered)
            row = row[: -further * step] | row[further * step :]
            covered += further
    # A copy without the padding, which a view would keep in memory and skip in every read.
    return row.as_strided((len(padded), height, width), padded.stride()).contiguous().view(seeds.shape)


def rectangle_mask(
    height: int,
    width: int,
    *,
    lam: float,
    center: tuple[int, int],
    device: torch.device | None = None,
) -> Tensor:
    """Return CutMix's rectangle for the input space (k = 0), clipped at the border.

    Args:
        height: height of the image.
        width: width of the image.
        lam: in [0, 1]; the rectangle has sqrt(1 - lam) of each side, before clipping.
        center: row and column of the rectangle's middle.
        device: where to make the mask.

    Returns:
        bool, (1, 1, H, W): True inside the rectangle.
    """
    ratio = sqrt(1.0 - lam)
    spans = []
    for size, middle in zip((height, width), center):
        length = int(size * ratio)
        start = middle - length // 2
        spans.append(slice(max(start, 0), min(start + length, size)))
    changed = torch.zeros(1, 1, height, width, dtype=torch.bool, device=device)
    changed[:, :, spans[0], spans[1]] = True
    return changed


def kept_fraction(changed: Tensor) -> Tensor:
    """Return p_u, the fraction of features that are not altered: float32, 0-d, or (N,) for N masks."""
    one = len(changed) == 1 and changed.dtype is torch.bool
    altered = changed.count_nonzero() if one else changed.flatten(1).sum(dim=1).squeeze(0)  # counting is faster
    return 1.0 - altered.float() / changed[0].numel()


def mix_features(
    x: Tensor,
    changed: Tensor,
    partner: Tensor,
    *,
    lam: Tensor | float | None = None,
    inverse: Tensor | None = None,
) -> Tensor:
    """Swap (hard) or interpolate (soft) the altered features of every sample with its partner's.

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
        # The mapped dimension follows the batch dimension, as one more dimension of the features.
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


def soft_target(target: Tensor, num_classes: int, *, label_smoothing: float = 0.0) -> Tensor:
    """Return targets as distributions, float32, smoothed as timm does: ``(1 - s) * y + s / K``.

    Args:
        target: int64 (B,) class indices, or float (B, K).
        num_classes: K.
        label_smoothing: s, in [0, 1).
    """
    soft = F.one_hot(target, num_classes).float() if target.ndim == 1 else target.float()
    return smooth_target(soft, label_smoothing)


def smooth_target(target: Tensor, label_smoothing: float) -> Tensor:
    """Return ``(1 - s) * target + s / K`` for soft targets (B, K)."""
    if label_smoothing == 0.0:
        return target
    return target * (1.0 - label_smoothing) + label_smoothing / target.shape[1]


def mix_targets(target: Tensor, partner: Tensor, *, kept: Tensor, lam: float | Tensor = 0.0) -> tuple[Tensor, Tensor]:
    """Return Y, the target of the altered features, and W, the re-weighted target (eq. 7 and 8).

    Args:
        target: float, (B, K); Y and W have its dtype.
        partner: int64, (B,).
        kept: p_u, 0-d or (B,).
        lam: weight of the own target inside the altered region, a number or (B,); 0 for a swap, where Y is the
            partner's target.
    """
    lam = lam.reshape(-1, 1).to(target.dtype) if isinstance(lam, Tensor) else lam
    changed_target = lam * target + (1.0 - lam) * target[partner]
    kept = kept.reshape(-1, 1).to(target.dtype)
    return changed_target, kept * target + (1.0 - kept) * changed_target


def patchup_loss(
    output: Tensor,
    *,
    target: Tensor,
    changed_target: Tensor,
    mixed_target: Tensor,
    kept: Tensor,
    criterion: Callable[[Tensor, Tensor], Tensor],
    objective: Objective = "paper",
) -> Tensor:
    """Return the learning objective (eq. 6) in its general form, for any criterion on soft targets.

    L1 = p_u * l(out, y) + (1 - p_u) * l(out, Y), L2 = l(out, W), and the paper's L = L1 + L2. If l is affine in its
    target, L1 equals L2, and a caller who knows that can take ``2 * l(out, W)`` instead.

    Args:
        output: logits, (B, K).
        target: y, the sample's own target, (B, K).
        changed_target: Y, (B, K).
        mixed_target: W, (B, K).
        kept: p_u, 0-d. With one p_u per sample, (B,), the criterion must return one loss per sample.
        criterion: l.
        objective: ``"paper"`` for L1 + L2, ``"l1"`` or ``"l2"`` for one of them.
    """
    if objective == "l2":
        return criterion(output, mixed_target)
    first = kept * criterion(output, target) + (1.0 - kept) * criterion(output, changed_target)
    return first if objective == "l1" else first + criterion(output, mixed_target)
