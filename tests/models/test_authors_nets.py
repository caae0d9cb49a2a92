"""The nets of the authors' code, restated from their description with plain functions, against the registered ones."""

from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models import save_for_hf
from torch import Tensor

from timm_patchup import PatchUp, list_sites
from timm_patchup.recipe import load_recipe
from timm_patchup.training.build import build_model

TINY = {"depths": (2, 1, 2), "channels": (8, 16, 32), "stem_channels": 4}
Weights = dict[str, Tensor]


def norm_relu(x: Tensor, w: Weights, name: str, *, training: bool) -> Tensor:
    mean, var = w[f"{name}.running_mean"].clone(), w[f"{name}.running_var"].clone()
    return F.relu(F.batch_norm(x, mean, var, w[f"{name}.weight"], w[f"{name}.bias"], training))


def authors_wide_net(x: Tensor, w: Weights, depths: tuple[int, ...], *, training: bool, stem_stride: int = 1) -> Tensor:
    """A stem with a bias, blocks that stride in their second convolution and add a shortcut of their raw input."""
    x = F.conv2d(x, w["stem.weight"], w["stem.bias"], stride=stem_stride, padding=1)
    for stage, depth in enumerate(depths):
        for block in range(depth):
            name, stride = f"stages.{stage}.{block}", 2 if stage and not block else 1
            out = norm_relu(x, w, f"{name}.bn1", training=training)
            out = F.conv2d(out, w[f"{name}.conv1.weight"], w[f"{name}.conv1.bias"], padding=1)
            out = norm_relu(out, w, f"{name}.bn2", training=training)
            out = F.conv2d(out, w[f"{name}.conv2.weight"], w[f"{name}.conv2.bias"], stride=stride, padding=1)
            if f"{name}.shortcut.weight" in w:
                x = F.conv2d(x, w[f"{name}.shortcut.weight"], w[f"{name}.shortcut.bias"], stride=stride)
            x = out + x
    pooled = norm_relu(x, w, "norm.0", training=training).mean(dim=(2, 3))
    return F.linear(pooled, w["head.fc.weight"], w["head.fc.bias"])


def authors_preact_net(x: Tensor, w: Weights, depths: tuple[int, ...], *, training: bool) -> Tensor:
    """Stride in the first convolution, a shortcut after the shared norm, no biases and no final norm."""
    x = F.conv2d(x, w["stem.weight"], padding=1)
    for stage, depth in enumerate(depths):
        for block in range(depth):
            name, stride = f"stages.{stage}.{block}", 2 if stage and not block else 1
            out = norm_relu(x, w, f"{name}.bn1", training=training)
            if f"{name}.shortcut.weight" in w:
                x = F.conv2d(out, w[f"{name}.shortcut.weight"], stride=stride)
            out = F.conv2d(out, w[f"{name}.conv1.weight"], stride=stride, padding=1)
            out = norm_relu(out, w, f"{name}.bn2", training=training)
            x = F.conv2d(out, w[f"{name}.conv2.weight"], padding=1) + x
    return F.linear(x.mean(dim=(2, 3)), w["head.fc.weight"], w["head.fc.bias"])


def shaken(model: torch.nn.Module) -> Weights:
    """Give a model weights and statistics of which none is zero or one, and return copies of them."""
    generator = torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            drawn = torch.rand(value.shape, generator=generator)
            value.copy_(drawn + 0.5 if "var" in name or value.ndim == 1 else (drawn - 0.5) / 2)
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("training", [False, True])
def test_wide_net_gives_what_the_authors_would(training: bool) -> None:
    model = timm.create_model("wrn28_10_authors", num_classes=7, stem_stride=2, **TINY).train(training)
    w, x = shaken(model), torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    expected = authors_wide_net(x, w, TINY["depths"], training=training, stem_stride=2)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


def test_wide_net_has_the_authors_number_of_parameters() -> None:
    with torch.device("meta"):
        counts = {
            name: sum(p.numel() for p in timm.create_model(name, num_classes=100).parameters())
            for name in ("wrn28_10", "wrn28_10_authors")
        }
    assert counts == {"wrn28_10": 36_536_884, "wrn28_10_authors": 36_546_980}


def test_final_norm_of_the_wide_net_remembers_a_tenth() -> None:
    model = timm.create_model("wrn28_10_authors", **TINY)
    x = torch.randn(4, 3, 32, 32)
    seen: list[Tensor] = []
    model.norm[0].register_forward_hook(lambda module, given, output: seen.append(given[0].clone()))
    model(x)
    mean = seen[0].mean(dim=(0, 2, 3))
    torch.testing.assert_close(model.norm[0].running_mean, 0.9 * mean)
    others = {m.momentum for name, m in model.named_modules() if hasattr(m, "momentum") and name != "norm.0"}
    assert others == {0.1}


@pytest.mark.parametrize("training", [False, True])
def test_preactresnet_of_the_recipes_gives_what_the_authors_would(training: bool) -> None:
    arguments = load_recipe("cifar10_preactresnet18_none").model_kwargs
    small = {"channels": (4, 8, 16, 32), "stem_channels": 4}
    model = timm.create_model("preactresnet18", num_classes=7, **arguments, **small).train(training)
    w, x = shaken(model), torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    expected = authors_preact_net(x, w, (2, 2, 2, 2), training=training)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["cifar10_preactresnet18_none", "svhn_wrn28_10_none"])
def test_recipes_start_from_torchs_own_initialisation(name: str) -> None:
    """Uniform within 1 / sqrt(fan in), as torch initialises a convolution; Kaiming's would be normal and larger."""
    model = build_model(load_recipe(name, {"num_classes": 10}))
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d) and module.weight.numel() > 2000:
            bound = module.weight[0].numel() ** -0.5
            assert 0.95 * bound < float(module.weight.abs().max()) <= bound
            assert float(module.weight.std()) == pytest.approx(bound / 3**0.5, rel=0.1)


def test_default_initialisation_is_kaimings() -> None:
    weight = timm.create_model("preactresnet18").stages[3][1].conv2.weight
    assert float(weight.std()) == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.05)
    with pytest.raises(ValueError, match=r"^init must be 'kaiming' or 'torch', got 'xavier'$"):
        timm.create_model("preactresnet8", init="xavier")


def test_wide_net_is_a_timm_model_that_mixes_and_reloads(tmp_path: Path) -> None:
    model = timm.create_model("wrn28_10_authors", num_classes=5, **TINY)
    assert list(list_sites(model)) == ["input", "stem", "stage1", "stage2", "stage3"]
    mix = PatchUp(model, prob=1.0, block_size=3, sites=["stage1"])
    x, target = mix(torch.randn(4, 3, 32, 32), torch.arange(4))
    mix.loss(model(x), target).backward()
    mix.detach()
    save_for_hf(model.eval(), tmp_path, model_args=TINY, safe_serialization=True)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert torch.equal(loaded(x.detach()), model(x.detach()))
