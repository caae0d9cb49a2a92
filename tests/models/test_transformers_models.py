"""Models of transformers: named sites, tokens behind class and register tokens, outputs with logits, clear refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from timm_patchup import Draw, PatchUp, create_mixer, list_sites
from timm_patchup.core.draw import Mix
from timm_patchup.core.probe import probe
from timm_patchup.core.sites import resolve_sites
from timm_patchup.errors import SiteError

transformers = pytest.importorskip("transformers")

_VIT = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32}
_VIT |= {"patch_size": 4}
# A small configuration, the map (C, H, W) at each named site for images of 32 x 32, and the number of prefix tokens.
MODELS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, int, int]], int | None]] = {
    "ViT": (_VIT, {"stem": (16, 8, 8), **{f"stage{i}": (16, 8, 8) for i in (1, 2, 3, 4)}}, 1),
    "DeiT": (_VIT, {"stem": (16, 8, 8), **{f"stage{i}": (16, 8, 8) for i in (1, 2, 3, 4)}}, 2),
    "Dinov2WithRegisters": (
        {**_VIT, "num_register_tokens": 4},
        {"stem": (16, 8, 8), **{f"stage{i}": (16, 8, 8) for i in (1, 2, 3, 4)}},
        5,
    ),
    "ConvNext": (
        {"hidden_sizes": [4, 8, 12, 16], "depths": [1, 1, 1, 1]},
        {"stem": (4, 8, 8), "stage1": (4, 8, 8), "stage2": (8, 4, 4), "stage3": (12, 2, 2), "stage4": (16, 1, 1)},
        None,
    ),
    "ResNet": (
        {"embedding_size": 4, "hidden_sizes": [4, 8, 12, 16], "depths": [1, 1, 1, 1], "layer_type": "basic"},
        {"stem": (4, 16, 16), "stage1": (4, 8, 8), "stage2": (8, 4, 4), "stage3": (12, 2, 2), "stage4": (16, 1, 1)},
        None,
    ),
    "Swin": (
        {
            "embed_dim": 8,
            "depths": [1, 1, 1],
            "num_heads": [1, 2, 4],
            "image_size": 32,
            "patch_size": 2,
            "window_size": 4,
        },
        {"stem": (8, 16, 16), "stage1": (8, 16, 16), "stage2": (16, 8, 8), "stage3": (32, 4, 4)},
        0,
    ),
}


def make(name: str) -> nn.Module:
    settings, _, _ = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(num_labels=10, **settings)
    return getattr(transformers, f"{name}ForImageClassification")(config).train()


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 3, 32, 32), torch.tensor([1, 2, 3])


@pytest.mark.parametrize("name", MODELS)
def test_named_sites_and_their_maps(name: str) -> None:
    model, (x, _) = make(name), images()
    _, expected, prefix = MODELS[name]
    assert list(list_sites(model)) == ["input", *expected]
    maps = probe(model, resolve_sites(model, list(expected)), x)
    found = {site: maps[site][0] for site in expected}
    assert {site: (m.channels, m.height, m.width) for site, m in found.items()} == expected
    assert all(len(maps[site]) == 1 for site in expected)
    assert found["stage1"].prefix == prefix


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("name", MODELS)
def test_training_at_every_default_site(name: str, mode: str) -> None:
    model, (x, y) = make(name), images()
    mix = PatchUp(model, mode=mode, prob=1.0, block_size=2, num_classes=10)  # type: ignore[arg-type]
    seen = set()
    for _ in range(40):
        mixed, target = mix(x, y)
        mix.loss(model(mixed).logits, target).backward()
        seen.add(mix.draw.site)  # type: ignore[union-attr]
    assert seen == {"input", "stem", "stage1", "stage2"}


@pytest.mark.parametrize("name", ["ViT", "ConvNext", "Swin"])
def test_everything_swapped_gives_the_partners_logits(name: str) -> None:
    model, (x, y) = make(name).eval(), images()
    clean = model(x).logits
    mix = PatchUp(model, sites=["stage2"], num_classes=10)
    model.training = True  # its modules stay in eval mode: without dropout
    draw = Draw("stage2", torch.tensor([1, 2, 0]), Mix(torch.ones(1, 1, 1, 1, dtype=torch.bool)))
    mixed, target = mix(x, y, draw=draw)
    torch.testing.assert_close(model(mixed).logits, clean[draw.partner])
    assert target.argmax(1).tolist() == [2, 3, 1]


def test_outputs_and_number_of_classes_in_one_line_each() -> None:
    model, (x, y) = make("ViT"), images()
    with pytest.raises(
        ValueError, match=r"^class indices need the number of classes, .*: give num_classes= to the mixer$"
    ):
        PatchUp(model, sites=["input"])(x, y)
    mix = PatchUp(make("ViT"), prob=1.0, sites=["stem"], num_classes=10)
    mixed, target = mix(x, y)
    message = r"^output must be the tensor of logits \(B, K\), got ImageClassifierOutput: give output.logits$"
    with pytest.raises(TypeError, match=message):
        mix.loss(mix.model(mixed), target)
    puzzle = create_mixer("puzzle_mix", model, prob=1.0, num_classes=10)
    with pytest.raises(TypeError, match=message):
        puzzle(x, y)


def test_module_that_returns_an_output_object() -> None:
    model, (x, y) = make("ViT"), images()
    mix = PatchUp(model, prob=1.0, sites=["vit"], num_classes=10)
    with pytest.raises(SiteError, match=r"^site 'vit' .* gives a BaseModelOutput\w*, mixing needs maps"):
        mix(x, y)


def test_tokens_in_another_order() -> None:
    settings = {"embed_dim": 8, "image_size": [64, 64], "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1]}
    model = transformers.HieraForImageClassification(transformers.HieraConfig(num_labels=10, **settings))
    with pytest.raises(SiteError, match=r"^site 'stage1' .* an order that .*\. Give sites=\['input', 'stem'\]"):
        PatchUp(model)
