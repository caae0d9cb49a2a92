"""PatchUp on small timm models: which features and targets are mixed, the gradient, and settings that alter nothing."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from tests.support import oracle
from tests.support.expectations import HIDDEN, SWIN, MakeModel, drawn, expected_mix, expected_targets, mask_of, record
from timm_patchup import PatchUp, list_sites

# What is mixed


@pytest.mark.parametrize("mask", ["batch", "sample"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("site", HIDDEN)
def test_hidden_features_are_the_papers_mix(site: str, mode: str, mask: str, model: nn.Module, labels: Tensor) -> None:
    images = torch.randn(4, 3, 32, 48)
    clean = copy.deepcopy(model)
    mix = PatchUp(model, mode=mode, mask=mask, prob=1.0, sites=[site], block_size=3)  # type: ignore[arg-type]
    unaltered: list[Tensor] = []
    altered: list[Tensor] = []
    name = list_sites(model)[site]
    record(clean.get_submodule(name), unaltered)
    record(model.get_submodule(name), altered)
    x, target = mix(images, labels)
    output = model(x)
    clean(images)
    draw, lam = drawn(mix), drawn(mix).lam if mode == "soft" else None
    assert x is images  # the hidden site is mixed, the input is not
    assert draw.site == site
    assert (0.0 < draw.lam < 1.0) if mode == "soft" else draw.lam == 0.0
    expected = expected_mix(unaltered[-1], draw, lam)
    torch.testing.assert_close(altered[-1].double(), expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(altered[-1], unaltered[-1])

    # The mask: one, or one per sample, made of blocks, and p_u is its share.
    changed = mask_of(mix)
    assert changed.shape == (1 if mask == "batch" else 4, *unaltered[-1].shape[1:])
    assert all(oracle.is_made_of_blocks(plane, 3) for planes in changed.tolist() for plane in planes)
    p_u = [oracle.portion_unchanged(holes) for holes in changed.flatten(1).tolist()]
    assert draw.kept.reshape(-1).tolist() == pytest.approx(p_u, abs=1e-6)

    # The targets are W, and the rest of the network continues from the mixed features.
    assert target.dtype is torch.float32
    for row, expected_row in zip(target.tolist(), expected_targets(labels, draw, lam)):
        assert row == pytest.approx(expected_row, abs=1e-6)
    injected = copy.deepcopy(clean)
    injected.get_submodule(name).register_forward_hook(lambda _module, _args, _output: expected.float())
    torch.testing.assert_close(output, injected(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", ["batch", "sample"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("input_mask", ["rectangle", "blocks"])
def test_input_is_always_swapped(input_mask: str, mode: str, mask: str, model: nn.Module, labels: Tensor) -> None:
    images = torch.randn(4, 3, 20, 24)
    mix = PatchUp(
        model,
        mode=mode,  # type: ignore[arg-type]
        mask=mask,  # type: ignore[arg-type]
        input_mask=input_mask,  # type: ignore[arg-type]
        prob=1.0,
        sites=["input"],
        block_size=3,
    )
    altered = 0
    for _ in range(8):
        before = images.clone()
        x, target = mix(images, labels)
        draw, changed = drawn(mix), mask_of(mix)
        assert draw.site == "input"
        assert draw.lam == 0.0
        assert torch.equal(images, before)
        assert torch.equal(x.double(), expected_mix(images, draw, None))
        for row, expected_row in zip(target.tolist(), expected_targets(labels, draw, None)):
            assert row == pytest.approx(expected_row, abs=1e-6)
        altered += int(changed.any() and not torch.equal(draw.partner, torch.arange(4)))
        if input_mask == "rectangle":
            assert changed.shape == (1, 1, 20, 24)
            rows, columns = changed[0, 0].any(1).nonzero().flatten(), changed[0, 0].any(0).nonzero().flatten()
            filled = len(rows) * len(columns)
            assert changed.sum() == filled  # one rectangle: the product of its sides
            if filled:
                assert rows[-1] - rows[0] + 1 == len(rows)
                assert columns[-1] - columns[0] + 1 == len(columns)
        else:
            assert changed.shape == (1 if mask == "batch" else 4, 3, 20, 24)
            assert all(oracle.is_made_of_blocks(plane, 3) for planes in changed.tolist() for plane in planes)
    assert altered > 0


@pytest.mark.parametrize("site", ["stem", "stage1", "stage2", "stage3"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_channels_last_model_is_mixed_along_its_maps(
    mode: str, site: str, make_model: MakeModel, labels: Tensor
) -> None:
    model = make_model("swin_tiny_patch4_window7_224", **SWIN)
    assert_nhwc_site_is_mixed(model, site, mode, labels)


@pytest.mark.parametrize("site", ["stem", "stage1", "stage2", "stage3"])
def test_channels_last_model_with_as_many_channels_as_rows(site: str, make_model: MakeModel, labels: Tensor) -> None:
    # (B, 16, 16, 16) at the stem and stage 1: as a shape it could be either layout. The same happens to swin_tiny at
    # 384 pixels, (B, 96, 96, 96), and to mambaout_femto at 192, (B, 48, 48, 48).
    assert_nhwc_site_is_mixed(make_model("test_mambaout"), site, "hard", labels)


def assert_nhwc_site_is_mixed(model: nn.Module, site: str, mode: str, labels: Tensor) -> None:
    images = torch.randn(4, 3, 64, 64)
    model.eval()  # no stochastic depth: only the mixer makes a difference
    clean = copy.deepcopy(model)
    mix = PatchUp(model, mode=mode, prob=1.0, gamma=0.3, sites=[site], block_size=3)  # type: ignore[arg-type]
    unaltered: list[Tensor] = []
    altered: list[Tensor] = []
    record(clean.get_submodule(list_sites(model)[site]), unaltered)
    record(model.get_submodule(list_sites(model)[site]), altered)
    model.training = True
    x, _ = mix(images, labels)
    model(x)
    clean(images)
    changed, (before, after) = mask_of(mix), (seen[-1].permute(0, 3, 1, 2) for seen in (unaltered, altered))
    assert changed.shape == (1, *before.shape[1:]), "(1, C, H, W), however the model keeps its features"
    expected = expected_mix(before, drawn(mix), drawn(mix).lam if mode == "soft" else None)
    torch.testing.assert_close(after.double(), expected, rtol=1e-5, atol=1e-5)
    (mask,) = drawn(mix).masks(site)
    assert torch.equal(mask, changed.permute(0, 2, 3, 1))
    planes = changed[0].tolist()
    assert all(oracle.is_made_of_blocks(plane, 3) for plane in planes)
    assert len({str(plane) for plane in planes}) > 1  # independent between channels


def test_block_size_may_differ_between_sites(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, gamma=0.2, sites=["stem", "stage1", "stage2"], block_size=[5, 3, 2])
    sizes = {"stem": 5, "stage1": 3, "stage2": 2}
    seen = set()
    for _ in range(200):  # each site is missed with probability 1e-35
        x, _ = mix(images, labels)
        site = drawn(mix).site
        assert site is not None
        if site not in seen:
            planes = mask_of(mix)[0].tolist()
            assert all(oracle.is_made_of_blocks(plane, sizes[site]) for plane in planes)
            assert not all(oracle.is_made_of_blocks(plane, sizes[site] + 1) for plane in planes)
        seen.add(site)
        if len(seen) == 3:
            break
        model(x)
    assert seen == set(sizes)


@pytest.mark.parametrize("batch", [1, 3, 5])
@pytest.mark.parametrize("site", ["input", "stem", "stage2"])
@pytest.mark.parametrize("mask", ["batch", "sample"])
def test_batches_of_any_size_train(batch: int, site: str, mask: str, model: nn.Module) -> None:
    mix = PatchUp(model, mode="soft", prob=1.0, sites=[site], mask=mask)  # type: ignore[arg-type]
    x, target = mix(torch.randn(batch, 3, 64, 64), torch.arange(batch))
    loss = mix.loss(model(x), target)
    loss.backward()
    assert torch.isfinite(loss)
    assert target.sum(1).tolist() == pytest.approx([1.0] * batch)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("mask", ["batch", "sample"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("site", ["input", "stem", "stage2"])
def test_gradient_through_the_model_matches_plain_autograd(
    site: str, mode: str, mask: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, mode=mode, mask=mask, prob=1.0, sites=[site], block_size=3)  # type: ignore[arg-type]
    x, _ = mix(images, labels)
    model(x)
    # A cycle of four is not its own inverse: the gradient flows back the other way.
    draw = replace(drawn(mix), partner=torch.tensor([1, 2, 3, 0]))

    def plain(features: Tensor) -> Tensor:
        other = draw.lam * features + (1 - draw.lam) * features[draw.partner]
        return torch.where(mask_of(mix), other, features)

    ours, theirs = images.clone().requires_grad_(), images.clone().requires_grad_()
    x, target = mix(ours, labels, draw=draw)
    model.load_state_dict(clean.state_dict())
    loss = mix.loss(model(x), target)
    if site != "input":
        module = clean.get_submodule(list_sites(clean)[site])
        module.register_forward_hook(lambda _module, _args, output: plain(output))
    expected = 2 * F.cross_entropy(clean(plain(theirs) if site == "input" else theirs), target)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    for (name, one), (_, other) in zip(model.named_parameters(), clean.named_parameters()):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5, msg=name)


# Nothing altered


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_gamma_of_zero_alters_nothing(mode: str, model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    sites = ["input", "stem", "stage1"]
    mix = PatchUp(model, mode=mode, gamma=0.0, prob=1.0, sites=sites, input_mask="blocks")  # type: ignore[arg-type]
    for _ in range(4):
        x, target = mix(images, labels)
        assert torch.equal(x, images)
        assert torch.equal(model(x), clean(images))
        torch.testing.assert_close(target, F.one_hot(labels, NUM_CLASSES).float())


def test_prob_of_zero_alters_nothing_and_has_the_plain_loss(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, prob=0.0)
    for _ in range(5):
        x, target = mix(images, labels)
        output = model(x)
        assert x is images
        assert drawn(mix).site is None
        assert torch.equal(target, F.one_hot(labels, NUM_CLASSES).float())
        assert torch.equal(output, clean(images))
        assert mix.loss(output, target).item() == pytest.approx(F.cross_entropy(output, labels).item(), abs=1e-6)


@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        LabelSmoothingCrossEntropy(0.1),
        BinaryCrossEntropy(smoothing=0.0),
        BinaryCrossEntropy(smoothing=0.1),
        BinaryCrossEntropy(smoothing=0.1, target_threshold=0.2),
    ],
    ids=str,
)
def test_unaltered_batch_has_the_plain_loss(
    criterion: nn.Module, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    mix = PatchUp(model, prob=0.0)
    x, target = mix(images, labels)
    output = model(x)
    plain = criterion(output, labels).item()
    assert mix.loss(output, target, criterion).item() == pytest.approx(plain, abs=1e-6)
    assert mix.loss(output, labels, criterion).item() == pytest.approx(plain, abs=1e-6)
