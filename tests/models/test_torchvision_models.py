"""torchvision's models: sites where timm's twin has them, and for one pair of twins the same draws and gradients."""

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from timm_patchup import PatchUp, list_sites
from timm_patchup.core.sites import resolve_sites

# A model of torchvision, timm's twin, and the modules of both; looked up once, they have not changed for years.
TWINS = {
    "resnet18": ("resnet18", "relu", ["layer1", "layer2", "layer3", "layer4"]),
    "convnext_tiny": ("convnext_tiny", "features.0", ["features.1", "features.3", "features.5", "features.7"]),
    "efficientnet_b0": ("efficientnet_b0", "features.0", [f"features.{i}" for i in (1, 2, 3, 5, 7)]),
    "mobilenet_v2": ("mobilenetv2_100", "features.0", [f"features.{i}" for i in (1, 3, 6, 13, 17)]),
    "densenet121": ("densenet121", "features.relu0", [f"features.{n}" for n in ("denseblock1", "denseblock2")]),
    "regnet_x_400mf": ("regnetx_004", "stem", [f"trunk_output.block{i}" for i in (1, 2, 3, 4)]),
    "vgg11_bn": ("vgg11_bn", "", [f"features.{i}" for i in (2, 6, 13, 20, 27, 28)]),
    "swin_t": ("swin_tiny_patch4_window7_224", "features.0", [f"features.{i}" for i in (1, 3, 5, 7)]),
    "vit_b_16": ("vit_base_patch16_224", "conv_proj", [f"encoder.layers.encoder_layer_{i}" for i in (2, 5, 8, 11)]),
}


@pytest.mark.parametrize("name", TWINS)
def test_sites_are_those_of_timms_twin(name: str) -> None:
    twin, stem, stages = TWINS[name]
    sites = list_sites(torchvision.models.get_model(name))
    assert sites.get("stem", "") == stem
    assert [sites[f"stage{i}"] for i in range(1, len(stages) + 1)] == stages
    with torch.device("meta"):
        theirs = timm.create_model(twin)
    assert list(sites) == list(list_sites(theirs))


def make_twins() -> tuple[nn.Module, nn.Module]:
    """A resnet18 of timm, and torchvision's with the same weights, both in train mode."""
    torch.manual_seed(0)
    ours = timm.create_model("resnet18", num_classes=10)
    theirs = torchvision.models.resnet18(num_classes=10)
    theirs.load_state_dict(ours.state_dict())
    return ours.train(), theirs.train()


def step(mix: PatchUp, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    mixed, target = mix(x, y)
    output = mix.model(mixed)
    loss = mix.loss(output, target)
    loss.backward()
    return output.detach(), target


@pytest.mark.parametrize("site", ["input", "stem", "stage1", "stage2"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_twins_have_the_same_draws_outputs_and_gradients(mode: str, site: str) -> None:
    ours, theirs = make_twins()
    x, y = torch.randn(4, 3, 64, 64), torch.tensor([1, 2, 3, 4])
    settings = {"mode": mode, "prob": 1.0, "sites": [site], "seed": 3, "block_size": 3}
    pair = [PatchUp(ours, **settings), PatchUp(theirs, num_classes=10, **settings)]  # type: ignore[arg-type]
    (one, first), (other, second) = (step(mix, x, y) for mix in pair)
    draws = [mix.draw for mix in pair]
    assert draws[0].site == draws[1].site == site  # type: ignore[union-attr]
    assert torch.equal(draws[0].changed, draws[1].changed)  # type: ignore[union-attr, arg-type]
    assert torch.equal(draws[0].partner, draws[1].partner)  # type: ignore[union-attr]
    assert torch.equal(first, second)
    assert torch.equal(one, other)
    gradients = dict(theirs.named_parameters())
    for key, parameter in ours.named_parameters():
        assert torch.equal(parameter.grad, gradients[key].grad), key  # type: ignore[arg-type]


def test_default_sites_are_those_of_the_paper() -> None:
    _, theirs = make_twins()
    assert [site.name for site in resolve_sites(theirs, None)] == ["input", "stem", "stage1", "stage2"]


def test_number_of_classes_has_to_be_given() -> None:
    _, theirs = make_twins()
    mix = PatchUp(theirs)
    with pytest.raises(ValueError, match=r"^class indices need the number of classes, .*: give num_classes= to the"):
        mix(torch.randn(2, 3, 64, 64), torch.tensor([1, 2]))


def test_structure_that_is_not_plain_is_refused() -> None:
    model = torchvision.models.googlenet(num_classes=10, init_weights=False, aux_logits=True)
    with pytest.raises(ValueError, match=r"^GoogLeNet has no feature_info, .*Give sites=\['input'\]"):
        PatchUp(model)
    mix = PatchUp(model, sites=["inception4a"], prob=1.0, num_classes=10)
    x, target = mix(torch.randn(2, 3, 96, 96), torch.tensor([1, 2]))
    output = model(x)
    with pytest.raises(
        TypeError, match=r"^output must be the tensor of logits .*, got GoogLeNetOutputs: give output.l"
    ):
        mix.loss(output, target)
    mix.loss(output.logits, target).backward()
