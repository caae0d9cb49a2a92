"""DropBlock as the authors ran it, restated from its description: all hidden sites, blocks per sample and channel."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timm_patchup import Mixer, create_mixer
from timm_patchup.core.draw import Change, Erase, Mix
from timm_patchup.core.functional import expected_coverage, seed_rate
from timm_patchup.core.method import DrawContext, SiteMethod
from timm_patchup.errors import UserError

from .every_method import bytes_saved

SITES = {"stem": "stem", "stage1": "stages.0.0", "stage2": "stages.1.0"}  # hooks are on the last block of a stage
MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)
X, Y = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(4)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("preactresnet8")


@contextmanager
def seen_before_mixing(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record what each site gives before a mixer's hooks: made first, hooks run first."""
    seen: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(module).register_forward_hook(lambda m, a, out, site=site: seen.update({site: out.clone()}))
        for site, module in SITES.items()
    ]
    yield seen
    for handle in handles:
        handle.remove()


def seen_after_mixing(model: nn.Module) -> dict[str, Tensor]:
    """Return what the sites give from now on; call it when the mixer has its hooks."""
    seen: dict[str, Tensor] = {}
    for site, module in SITES.items():
        model.get_submodule(module).register_forward_hook(lambda m, a, out, at=site: seen.update({at: out}))
    return seen


def authors_scaling(x: Tensor, changed: Tensor) -> Tensor:
    """What is left, times the number of features over those that are left, of the whole batch."""
    mask = 1.0 - changed.float()
    return x * mask * (mask.numel() / mask.sum())


def test_blocks_at_all_hidden_sites_of_every_batch(model: nn.Module) -> None:
    with seen_before_mixing(model) as before:
        mix = create_mixer("dropblock", model, drop_prob=0.2, block_size=3)
        after = seen_after_mixing(model)
        x, target = mix(X, Y)
        output = model(x)
        draw = mix.draw
        assert draw is not None
        assert torch.equal(x, X), "never at the input"
        assert torch.equal(target, F.one_hot(Y, 10).float())
        parts = dict(draw.changes)
        assert list(parts) == list(SITES)
        for site, part in parts.items():
            assert part.changed is not None
            assert part.changed.shape == before[site].shape, "one mask per sample and channel"
            masks = part.changed.flatten(0, 1)
            assert len({mask.numpy().tobytes() for mask in masks}) > len(masks) / 3
            torch.testing.assert_close(after[site], authors_scaling(before[site], part.changed))
        mix.loss(output, target).backward()
        assert model.stem.weight.grad is not None


def test_share_that_is_dropped_matches_the_authors_masks(model: nn.Module) -> None:
    """Seeds at every place of every channel and sample, grown by a max-pool: the mean coverage, within 5 sigma."""
    mix = create_mixer("dropblock", model)
    dropped: dict[str, list[float]] = {site: [] for site in SITES}
    generator = torch.Generator().manual_seed(1)
    for _ in range(40):
        mix(X, Y)
        draw = mix.draw
        assert draw is not None
        for site, part in draw.changes.items():
            dropped[site].append(1.0 - float(part.kept.mean()))
        mix._arming.disarm()
    for site, size, channels in (("stem", 32, 16), ("stage1", 32, 16), ("stage2", 16, 32)):
        rate = 0.1 * size**2 / (7**2 * (size - 7 + 1) ** 2)
        seeds = (torch.rand(40, 4 * channels, size, size, generator=generator) < rate).float()
        theirs = F.max_pool2d(seeds, 7, stride=1, padding=3).mean(dim=(1, 2, 3))
        ours = torch.tensor(dropped[site])
        sigma = float((theirs.var() / 40 + ours.var() / 40).sqrt())
        assert float(ours.mean() - theirs.mean()) == pytest.approx(0, abs=5 * sigma)
        share = expected_coverage(seed_rate(0.1, 7, size, size), 7, size, size)
        assert share == pytest.approx({32: 0.127, 16: 0.184}[size], abs=0.001), "as recipes/methods/dropblock.yaml says"
        assert float(ours.mean()) == pytest.approx(share, abs=0.01)
    assert expected_coverage(seed_rate(0.1, 7, 8, 8), 7, 8, 8) == pytest.approx(0.618, abs=0.001)


def test_nothing_is_dropped_in_eval_mode_and_when_paused(model: nn.Module) -> None:
    mix = create_mixer("dropblock", model, drop_prob=0.3)
    mix(X, Y)
    with mix.paused():
        first, second = model(X), model(X)
    assert torch.equal(first, second)
    assert not torch.equal(model(X), first)
    model.eval()
    assert torch.equal(model(mix(X, Y)[0]), model(X))
    assert mix.draw is not None
    assert mix.draw.also == {}


def test_a_draw_that_is_never_applied_is_noticed(model: nn.Module) -> None:
    mix = create_mixer("dropblock", model)
    mix(X, Y)
    with pytest.raises(RuntimeError, match="the draw at site 'stage2' was never applied"):
        mix(X, Y)


def test_a_draw_is_replayed_at_all_its_sites(model: nn.Module) -> None:
    mix = create_mixer("dropblock", model, drop_prob=0.3, block_size=3)
    first = model(mix(X, Y)[0])
    draw = mix.draw
    assert draw is not None
    model(mix(X, Y)[0])
    again = model(mix(X, Y, draw=draw)[0])
    assert torch.equal(first, again)
    assert mix.draw is draw
    for wrong in ({"stage2": draw.change}, {"stem": Mix(MASK)}, {"conv1": draw.change}):
        with pytest.raises(UserError, match=r"draw\.(also|site)"):
            mix(X, Y, draw=replace(draw, also=wrong))  # type: ignore[arg-type]


def test_one_random_site_as_a_setting(model: nn.Module) -> None:
    mix = create_mixer("dropblock", model, at="random", mask="sample")
    sites = set()
    for _ in range(30):
        model(mix(X, Y)[0])
        draw = mix.draw
        assert draw is not None
        assert draw.also == {}
        assert isinstance(draw.change, Erase)
        assert draw.change.changed.shape[:2] == (4, 1)
        sites.add(draw.site)
    assert sites == set(SITES)


@pytest.mark.parametrize("sites", [["input", "stem"], ["stem", "input"], ["stage1", "input", "stem"]])
def test_the_input_too_if_it_is_asked_for_in_any_order(sites: list[str], model: nn.Module) -> None:
    with seen_before_mixing(model) as before:
        mix = create_mixer("dropblock", model, sites=sites, drop_prob=0.3)
        after = seen_after_mixing(model)
        x, target = mix(X, Y)
        output = model(x)
        draw = mix.draw
        assert draw is not None
        parts = dict(draw.changes)
    assert list(parts) == sites
    for site, part in parts.items():
        assert part.changed is not None
        given, altered = (X, x) if site == "input" else (before[site], after[site])
        torch.testing.assert_close(altered, authors_scaling(given, part.changed), msg=site)
    assert torch.isfinite(mix.loss(output, target))


def test_samples_are_not_mixed_at_several_sites(model: nn.Module) -> None:
    @dataclass(frozen=True, kw_only=True)
    class MixEverywhere(SiteMethod):
        at_all_sites = True

        def change(self, context: DrawContext) -> Change:
            return Mix(context.everywhere(), 0.5)

    mix = Mixer(model, MixEverywhere(sites=("stem", "stage1")))
    with pytest.raises(TypeError, match="several sites together"):
        mix(X, Y)


def test_compiled_step_has_the_gradients_of_an_eager_one(model: nn.Module) -> None:
    gradients = []
    for compiled in (False, True):
        torch._dynamo.reset()
        model.zero_grad()
        mix = create_mixer("dropblock", model, drop_prob=0.3, block_size=3, sites=["stem", "stage1"])
        network = torch.compile(model, backend="aot_eager") if compiled else model
        x, target = mix(X, Y)
        mix.loss(network(x), target).backward()
        mix(X, Y)  # the draw was noticed as applied
        mix.detach()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for eager, other in zip(*gradients):
        torch.testing.assert_close(eager, other, rtol=1e-4, atol=1e-5)


def test_backward_keeps_a_mask_and_no_activation() -> None:
    network = nn.Sequential(nn.Identity(), nn.Identity()).train()
    mix = create_mixer("dropblock", network, sites=["0"], num_classes=2)
    x = torch.randn(32, 16, 12, 12, requires_grad=True)
    mixed, _ = mix(x, torch.zeros(32, dtype=torch.long))
    assert 0 < bytes_saved(lambda: network(mixed)) < 0.26 * x.untyped_storage().nbytes(), "one byte per feature"
