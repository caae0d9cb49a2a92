"""What the tests of a mixer expect of a draw, from the oracle, and small helpers that read one."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from tests.support import oracle
from timm_patchup import Draw, Mixer

HIDDEN = ["stem", "stage1", "stage2", "stage3"]
SWIN = {"img_size": 64, "embed_dim": 8, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2), "window_size": 2}
MakeModel = Callable[..., nn.Module]


def record(module: nn.Module, seen: list[Tensor]) -> None:
    module.register_forward_hook(lambda _module, _args, output: seen.append(output.detach().clone()))


def drawn(mix: Mixer) -> Draw:
    assert mix.draw is not None
    return mix.draw


def mask_of(mix: Mixer) -> Tensor:
    changed = drawn(mix).changed
    assert changed is not None
    return changed


def expected_features(x: Tensor, changed: Tensor, partner: Tensor, lam: float | None) -> Tensor:
    """The paper's operation in float64 on features (B, C, H, W), one mask or one per sample; ``lam`` None is hard."""
    holes = changed.expand(-1, *x.shape[1:]).flatten(1).tolist()
    rows = oracle.operation(x.double().flatten(1).tolist(), partner.tolist(), holes, lam)
    return torch.tensor(rows, dtype=torch.float64).reshape(x.shape)


def expected_mix(x: Tensor, draw: Draw, lam: float | Tensor | None) -> Tensor:
    assert draw.changed is not None
    if isinstance(lam, Tensor):  # one per sample
        return torch.stack([expected_mix(x, draw, one)[i] for i, one in enumerate(lam.tolist())])
    return expected_features(x, draw.changed, draw.partner, lam)


def expected_targets(labels: Tensor, draw: Draw, lam: float | None) -> list[list[float]]:
    own = F.one_hot(labels, NUM_CLASSES).double().tolist()
    p_u = draw.kept.expand(len(labels)).tolist()
    return [oracle.reweighted_target(own[i], own[j], p_u[i], lam) for i, j in enumerate(draw.partner.tolist())]


def hook_count(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def tiny() -> nn.Module:
    """Two convolutions, fast enough for thousands of batches: sites input, 0 and 1."""
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1)).train()
