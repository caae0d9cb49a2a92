"""A model or a site that cannot be mixed ends in one error that states why and what to do; nothing stays hooked."""

from collections.abc import Callable
from typing import cast

import pytest
import timm
import torch
from torch import Tensor, nn

from tests.support.expectations import hook_count
from timm_patchup import PatchUp, list_sites
from timm_patchup.errors import SiteError


def plain_net() -> nn.Module:
    """A network without information about its stages and classes."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)).train()


def test_unknown_site_names_the_nearest(model: nn.Module) -> None:
    message = r"unknown site 'stage9': .*input, stem, stage1, stage2, stage3, stage4.*did you mean .*stage4"
    with pytest.raises(ValueError, match=message):
        PatchUp(model, sites=["stem", "stage9"])
    assert hook_count(model) == 0


@pytest.mark.parametrize(
    ("sites", "error", "message"),
    [
        ("stem", TypeError, "^sites must be a list of names, got 'stem'$"),
        ([1], TypeError, r"^sites must be a list of names, got \[1\]$"),
        (["stem", None], TypeError, r"^sites must be a list of names, got \['stem', None\]$"),
        (1, TypeError, "^sites must be a list of names, got 1$"),
        ([], ValueError, "^sites is empty: give at least one value$"),
        (["stem", "stem"], ValueError, "^sites name one place more than once: stem, stem$"),
        (["stem", "act1"], ValueError, "^sites name one place more than once: stem, act1$"),
    ],
)
def test_sites_that_are_no_list_of_places(
    sites: object, error: type[Exception], message: str, model: nn.Module
) -> None:
    with pytest.raises(error, match=message):
        PatchUp(model, sites=sites)  # type: ignore[arg-type]
    assert hook_count(model) == 0


def test_model_without_sites() -> None:
    with pytest.raises(ValueError, match=r"^Sequential has no feature_info.*no default sites.*Give sites=\['input'\]"):
        PatchUp(plain_net())


def test_site_that_gives_no_map(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["fc"])
    with pytest.raises(
        ValueError, match=r"^site 'fc' \(module 'fc' of .*\) gives a tensor \(B, 10\), mixing needs maps"
    ):
        mix(images, labels)
    assert hook_count(model) == 0


@pytest.mark.parametrize("name", ["test_vit", "eva02_tiny_patch14_224", "naflexvit_base_patch16_gap"])
def test_patch_dropout_has_no_grid(name: str) -> None:
    """Which patches are left differs between samples, so no feature of one has a place in another."""
    size = {} if "naflex" in name else {"img_size": 112}
    model = timm.create_model(name, num_classes=10, depth=2, patch_drop_rate=0.5, **size).train()
    message = (
        r"^site '[\w.]+' \(module '[\w.]+' of \w+ \(\w+\)\) drops different tokens of each sample in "
        r"training \(patch dropout\): create the model with patch_drop_rate=0\. Give sites=\['input'\], which can be "
        r"mixed, or name other modules$"
    )
    for site in ("stage1", "blocks", "norm", "blocks.1.norm1"):
        with pytest.raises(SiteError, match=message):
            PatchUp(model, prob=1.0, sites=[site])
    assert hook_count(model) == 0
    # Before any patch is dropped there is a grid.
    mix = PatchUp(model, prob=1.0, sites=["stem"])
    mixed, target = mix(torch.randn(2, 3, 112, 112), torch.tensor([1, 2]))
    mix.loss(model(mixed), target).backward()


def test_inside_blocks_of_hiera_the_order_of_tokens_is_unknown() -> None:
    small = {"img_size": 64, "stages": (1, 1, 1, 1), "embed_dim": 24}
    model = timm.create_model("hiera_tiny_224", num_classes=10, **small).train()
    with pytest.raises(
        SiteError, match=r"returns tokens in an order that is known only inside the model\. Give sites="
    ):
        PatchUp(model, prob=1.0, sites=["blocks.1.norm2"])


def assert_refused(wrapped: nn.Module, message: str, **settings: object) -> None:
    with pytest.raises(TypeError, match=message):
        PatchUp(wrapped, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("sites", [None, ["input"]])
def test_model_in_data_parallel(sites: list[str] | None, model: nn.Module) -> None:
    assert_refused(nn.DataParallel(model), "^model is wrapped in DataParallel: give model.module", sites=sites)
    assert hook_count(model) == 0


@pytest.mark.parametrize("sites", [None, ["input"]])
def test_compiled_model(sites: list[str] | None, model: nn.Module) -> None:
    wrapped = cast(nn.Module, torch.compile(model, backend="eager"))
    assert_refused(wrapped, "^model is compiled: .*Give the plain model", sites=sites)
    model.compile(backend="eager")
    assert_refused(model, "^model is compiled: .*Give the plain model", sites=sites)
    assert hook_count(model) == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("sites", [None, ["input"]])
def test_scripted_model(sites: list[str] | None, make_model: Callable[..., nn.Module]) -> None:
    scripted = torch.jit.script(make_model(scriptable=True))
    assert_refused(scripted, "^model is a RecursiveScriptModule: hooks do not run in TorchScript", sites=sites)
    traced = torch.jit.trace(plain_net(), torch.randn(1, 3, 8, 8))
    assert_refused(traced, "^model is a TopLevelTracedModule: hooks do not run in TorchScript", sites=sites)


@pytest.mark.parametrize("value", [None, "resnet18", 3])
def test_model_that_is_no_module(value: object) -> None:
    with pytest.raises(TypeError, match=f"^model must be an nn.Module, got {type(value).__name__}$"):
        PatchUp(value)  # type: ignore[arg-type]


def test_two_mixers_on_one_model(model: nn.Module) -> None:
    first = PatchUp(model)
    hooks = hook_count(model)
    with pytest.raises(ValueError, match=r"^the model already has a mixer: call detach\(\) on that one first"):
        PatchUp(model, mode="soft")
    assert hook_count(model) == hooks
    first.detach()
    PatchUp(model, mode="soft")


def test_detached_mixer(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model)
    mix.detach()
    with pytest.raises(RuntimeError, match=r"^this mixer is detached from its model: make a new one$"):
        mix(images, labels)


def test_patch_dropout_fails_when_the_mixer_is_made_and_the_model_is_free() -> None:
    model = timm.create_model("test_vit", num_classes=10, patch_drop_rate=0.25)
    with pytest.raises(
        SiteError, match=r"different tokens of each sample.*sites=\['input', 'stem'\], which can be mixed"
    ) as caught:
        PatchUp(model)
    assert caught.value.for_caller("--mix-sites").endswith(
        "the model with patch_drop_rate=0. Give --mix-sites input stem, which can be mixed, or name other modules"
    )
    mix = PatchUp(model, prob=1.0, sites=["input"])
    mixed, target = mix(torch.randn(2, 3, 160, 160), torch.tensor([1, 2]))
    mix.loss(model(mixed), target).backward()


def test_model_without_maps_fails_at_its_first_batch_and_is_free_again(
    model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    for seed in range(8):  # whatever is drawn first, even nothing or the input
        mix = PatchUp(model, prob=0.5, seed=seed, sites=["input", "stem", "fc"])
        with pytest.raises(SiteError, match=r"mixing needs maps.*sites=\['input', 'stem'\], which can be mixed"):
            mix(images, labels)
    mix = PatchUp(model, prob=1.0, sites=["input"])
    mixed, target = mix(images, labels)
    mix.loss(model(mixed), target).backward()


def test_sites_of_what_is_no_module() -> None:
    with pytest.raises(TypeError, match=r"^model must be an nn\.Module, got str$"):
        list_sites("resnet18")  # type: ignore[arg-type]
