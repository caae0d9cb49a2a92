"""ResNet-18 for small images: its forward pass restated with plain functions, and timm's own in all but the stem."""

from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from timm.models import save_for_hf
from torch import Tensor

from timm_patchup import PatchUp, list_sites

NAME = "resnet18_cifar"
Weights = dict[str, Tensor]


def norm(x: Tensor, w: Weights, name: str) -> Tensor:
    return F.batch_norm(x, *(w[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")))


def by_hand(x: Tensor, w: Weights) -> Tensor:
    """A 3 x 3 stem of stride 1, no pooling, four stages of two basic blocks, of which the last three halve the map."""
    x = F.relu(norm(F.conv2d(x, w["conv1.weight"], padding=1), w, "bn1"))
    for stage in range(1, 5):
        for block in range(2):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            out = F.relu(norm(F.conv2d(x, w[f"{name}.conv1.weight"], stride=stride, padding=1), w, f"{name}.bn1"))
            out = norm(F.conv2d(out, w[f"{name}.conv2.weight"], padding=1), w, f"{name}.bn2")
            if stride == 2:
                x = norm(F.conv2d(x, w[f"{name}.downsample.0.weight"], stride=2), w, f"{name}.downsample.1")
            x = F.relu(out + x)
    return F.linear(x.mean(dim=(2, 3)), w["fc.weight"], w["fc.bias"])


def shaken(**settings: object) -> torch.nn.Module:
    """Return the net in eval mode with weights and statistics of which none is zero."""
    model = timm.create_model(NAME, **settings).eval()
    generator = torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        if value.ndim == 1:
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5 * ("var" in name))
    return model


@torch.no_grad()
def test_the_forward_pass_is_the_one_described() -> None:
    model = shaken(num_classes=7)
    for size in (32, 64):
        x = torch.randn(2, 3, size, size)
        torch.testing.assert_close(model(x), by_hand(x, model.state_dict()), rtol=1e-4, atol=1e-4)


def test_all_but_the_stem_is_timms_resnet18() -> None:
    own, timms = (timm.create_model(name, num_classes=100).state_dict() for name in (NAME, "resnet18"))
    assert own.keys() == timms.keys()
    assert [name for name in own if own[name].shape != timms[name].shape] == ["conv1.weight"]
    assert not own["layer1.0.bn2.weight"].any(), "blocks start as the identity, in OpenMixup and in timm"
    spread = own["conv1.weight"].std().item() / (2 / (9 * 64)) ** 0.5
    assert abs(spread - 1) < 4 / (2 * own["conv1.weight"].numel()) ** 0.5, "He et al.'s initial weights, by fan-out"


def test_sites_and_features_have_the_sizes_of_small_images() -> None:
    model = timm.create_model(NAME)
    assert list(list_sites(model)) == ["input", "stem", "stage1", "stage2", "stage3", "stage4"]
    features = timm.create_model(NAME, features_only=True)(torch.randn(1, 3, 32, 32))
    assert [feature.shape[-1] for feature in features] == [32, 32, 16, 8, 4]
    assert [info["reduction"] for info in model.feature_info] == [1, 1, 2, 4, 8]
    mix = PatchUp(model, prob=1.0, sites=["stage1"], block_size=7)
    x, target = mix(torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3]))
    mix.loss(model(x), target).backward()
    assert model.conv1.weight.grad is not None
    mix.detach()


def test_a_saved_net_loads_again_with_plain_timm(tmp_path: Path) -> None:
    model = shaken(num_classes=5, in_chans=1)
    save_for_hf(model, tmp_path, model_args={"in_chans": 1}, safe_serialization=True)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = torch.randn(2, 1, 32, 32)
    assert torch.equal(loaded(x), model(x))
    with torch.device("meta"):
        assert timm.create_model(NAME).conv1.weight.is_meta
