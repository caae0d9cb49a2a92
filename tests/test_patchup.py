"""Tests of PatchUp on small timm models: what is mixed, where, how often, the targets, the loss and the switches.

Bands of statistics hold with confidence 1 - 1e-9 for a right mixer (Bernstein's inequality); seeds are fixed.
"""

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from math import isclose

import pytest
import torch
import torch.nn.functional as F
from timm.data.mixup import mixup_target
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from timm_patchup import Draw, PatchUp, create_mixer, list_methods, list_sites
from timm_patchup.criterion import for_soft_targets
from timm_patchup.functional import mix_targets, patchup_loss
from timm_patchup.methods import method_parameters

from . import oracle
from .conftest import NUM_CLASSES, within

HIDDEN = ["stem", "stage1", "stage2", "stage3"]
SWIN = {"img_size": 64, "embed_dim": 8, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2), "window_size": 2}
MakeModel = Callable[..., nn.Module]


def record(module: nn.Module, seen: list[Tensor]) -> None:
    module.register_forward_hook(lambda _module, _args, output: seen.append(output.detach().clone()))


def drawn(mix: PatchUp) -> Draw:
    assert mix.draw is not None
    return mix.draw


def mask_of(mix: PatchUp) -> Tensor:
    changed = drawn(mix).changed
    assert changed is not None
    return changed


def expected_mix(x: Tensor, draw: Draw, lam: float | None) -> Tensor:
    assert draw.changed is not None
    holes = draw.changed.expand(-1, *x.shape[1:]).flatten(1).tolist()
    rows = oracle.operation(x.double().flatten(1).tolist(), draw.partner.tolist(), holes, lam)
    return torch.tensor(rows, dtype=torch.float64).reshape(x.shape)


def expected_targets(labels: Tensor, draw: Draw, lam: float | None) -> list[list[float]]:
    own = F.one_hot(labels, NUM_CLASSES).double().tolist()
    p_u = draw.kept.expand(len(labels)).tolist()
    return [oracle.reweighted_target(own[i], own[j], p_u[i], lam) for i, j in enumerate(draw.partner.tolist())]


def hook_count(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def tiny() -> nn.Module:
    """Two convolutions, fast enough for thousands of batches: sites input, 0 and 1."""
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1)).train()


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

    # The mask: one or one for each sample, made of blocks, and p_u is its share.
    changed = mask_of(mix)
    assert changed.shape == (1 if mask == "batch" else 4, *unaltered[-1].shape[1:])
    assert all(oracle.is_made_of_blocks(plane, 3) for planes in changed.tolist() for plane in planes)
    p_u = [oracle.portion_unchanged(holes) for holes in changed.flatten(1).tolist()]
    assert draw.kept.reshape(-1).tolist() == pytest.approx(p_u, abs=1e-6)

    # The targets are W, and the rest of the network goes on from the mixed features.
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
    changed, features = mask_of(mix), unaltered[-1]
    assert changed.shape == (1, *features.shape[1:])
    expected = expected_mix(features, drawn(mix), drawn(mix).lam if mode == "soft" else None)
    torch.testing.assert_close(altered[-1].double(), expected, rtol=1e-5, atol=1e-5)
    planes = changed[0].permute(2, 0, 1).tolist()  # (H, W, C): a plane for each channel
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
def test_gradient_through_the_model_is_that_of_plain_autograd(
    site: str, mode: str, mask: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, mode=mode, mask=mask, prob=1.0, sites=[site], block_size=3)  # type: ignore[arg-type]
    x, _ = mix(images, labels)
    model(x)
    # A cycle of four is not its own inverse: the gradient goes back along the other way.
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


def test_gradient_checkpointing_sees_the_same_mix(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, prob=1.0, sites=["stage2"])
    grads = []
    for checkpointed in (False, True):
        model.set_grad_checkpointing(checkpointed)  # type: ignore[operator]
        model.zero_grad()
        x, target = mix(images, labels, draw=mix.draw)
        mix.loss(model(x), target).backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for plain, again in zip(*grads):
        torch.testing.assert_close(plain, again)


# How often and where


@torch.no_grad()
def test_prob_is_the_frequency_of_altered_batches() -> None:
    model = tiny()
    images, labels = torch.randn(2, 3, 5, 5), torch.tensor([0, 1])
    for prob in (0.3, 0.7):
        mix = PatchUp(model, prob=prob, sites=["input", "0"], num_classes=2)
        altered = 0
        for _ in range(1500):
            x, _ = mix(images, labels)
            model(x)
            altered += drawn(mix).site is not None
        assert within(altered, 1500, prob)
        mix.detach()


@torch.no_grad()
def test_sites_partners_and_lam_have_their_distributions() -> None:
    model, trials = tiny(), 2000
    mix = PatchUp(model, mode="soft", prob=1.0, gamma=0.4, block_size=1, sites=["input", "0", "1"], num_classes=3)
    images, labels = torch.randn(3, 3, 5, 5), torch.tensor([0, 1, 2])
    draws = []
    for _ in range(trials):
        x, _ = mix(images, labels)
        model(x)
        draws.append(drawn(mix))
    sites = Counter(draw.site for draw in draws)
    assert set(sites) == {"input", "0", "1"}
    assert all(within(count, trials, 1 / 3) for count in sites.values())
    partners = Counter(tuple(draw.partner.tolist()) for draw in draws)
    assert set(partners) == set(permutations(range(3)))
    assert all(within(count, trials, 1 / 6) for count in partners.values())
    hidden = [draw for draw in draws if draw.site != "input"]
    lams = torch.tensor([draw.lam for draw in hidden], dtype=torch.float64)
    assert within(lams.sum().item(), len(lams), 0.5, bound=0.5, variance=0.05)  # Beta(2, 2)
    assert within((lams - 0.5).square().sum().item(), len(lams), 0.05, bound=0.25, variance=3 / 560 - 0.0025)
    # Blocks of one: every feature of every channel is altered with probability gamma.
    masks = torch.stack([draw.changed[0].int() for draw in hidden if draw.site == "1" and draw.changed is not None])
    assert within(int(masks.sum()), masks.numel(), 0.4)
    for count in masks.sum(0).flatten().tolist():
        assert within(count, len(masks), 0.4)


def share_of_rectangles(height: int, width: int, least: float) -> float:
    """The probability of keeping more than ``least`` of an image, for lam and the center uniform, by enumeration."""
    steps = 4000
    cuts = Counter(
        (int(height * ((n + 0.5) / steps) ** 0.5), int(width * ((n + 0.5) / steps) ** 0.5)) for n in range(steps)
    )
    total = 0.0
    for (tall, wide), count in cuts.items():
        rows = [sum(0 <= i < height for i in range(r - tall // 2, r - tall // 2 + tall)) for r in range(height)]
        columns = [sum(0 <= j < width for j in range(c - wide // 2, c - wide // 2 + wide)) for c in range(width)]
        kept = sum(1.0 - r * c / (height * width) > least for r in rows for c in columns)
        total += count / steps * kept / (height * width)
    return total


@torch.no_grad()
def test_rectangles_are_those_of_uniform_lam_and_center() -> None:
    model, trials = tiny(), 2000
    mix = PatchUp(model, mode="soft", alpha=50.0, prob=1.0, sites=["input"], num_classes=2)
    images, labels = torch.randn(2, 3, 32, 24), torch.tensor([0, 1])
    kept, rows = [], torch.zeros(32)
    for _ in range(trials):
        mix(images, labels)
        kept.append(drawn(mix).kept.item())
        rows += mask_of(mix)[0, 0].any(1)
    for least in (0.5, 0.7, 0.9):
        assert within(sum(value > least for value in kept), trials, share_of_rectangles(32, 24, least))
    # Top and bottom alike: the difference of two indicators is -1, 0 or 1.
    assert within((rows[0] - rows[-1]).item(), trials, 0.0, variance=1.0)


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


# The objective


def by_hand(kept_places: int, lam: float) -> tuple[Tensor, Tensor, Draw]:
    """Four images of ten places, and a draw at the input that keeps so many of them."""
    images, labels = torch.randn(4, 3, 2, 5), torch.tensor([3, 1, 4, 9])
    changed = torch.ones(10, dtype=torch.bool)
    changed[:kept_places] = False
    kept = torch.tensor(kept_places / 10)
    return images, labels, Draw("input", torch.tensor([1, 2, 3, 0]), lam, changed.reshape(1, 1, 2, 5), kept)


Loss = Callable[[list[float], list[float]], float]


def expected_terms(output: Tensor, labels: Tensor, draw: Draw, sample_loss: Loss) -> tuple[float, float]:
    """L1 and L2 of eq. 6 as means over the batch, from the oracle."""
    own, lam = F.one_hot(labels, NUM_CLASSES).double().tolist(), draw.lam or None
    p_u = draw.kept.double().expand(len(labels)).tolist()
    firsts, seconds = [], []
    for i, j in enumerate(draw.partner.tolist()):
        logits = output[i].double().tolist()
        of_changed = sample_loss(logits, oracle.target_of_changed(own[i], own[j], lam))
        firsts.append(oracle.first_term(p_u[i], sample_loss(logits, own[i]), of_changed))
        seconds.append(sample_loss(logits, oracle.reweighted_target(own[i], own[j], p_u[i], lam)))
    return sum(firsts) / len(firsts), sum(seconds) / len(seconds)


def with_smoothing(sample_loss: Loss, smoothing: float) -> Loss:
    return lambda logits, target: sample_loss(logits, oracle.smoothed(target, smoothing))


AFFINE: dict[str, tuple[nn.Module | None, Loss]] = {
    "default": (None, oracle.cross_entropy),
    "cross_entropy": (nn.CrossEntropyLoss(), oracle.cross_entropy),
    "cross_entropy_smooth": (nn.CrossEntropyLoss(label_smoothing=0.1), with_smoothing(oracle.cross_entropy, 0.1)),
    "soft_target": (SoftTargetCrossEntropy(), oracle.cross_entropy),
    "label_smoothing": (LabelSmoothingCrossEntropy(0.1), with_smoothing(oracle.cross_entropy, 0.1)),
    "timm_bce": (BinaryCrossEntropy(smoothing=0.0), oracle.binary_cross_entropy),
    "timm_bce_smooth": (BinaryCrossEntropy(smoothing=0.1), with_smoothing(oracle.binary_cross_entropy, 0.1)),
    "torch_bce": (nn.BCEWithLogitsLoss(), oracle.binary_cross_entropy),
}


@pytest.mark.parametrize("lam", [0.0, 0.375])
@pytest.mark.parametrize("name", AFFINE)
def test_short_form_is_the_objective_where_the_criterion_is_affine(name: str, lam: float, model: nn.Module) -> None:
    criterion, sample_loss = AFFINE[name]
    images, labels, draw = by_hand(7, lam)
    output = torch.randn(4, NUM_CLASSES)
    first, second = expected_terms(output, labels, draw, sample_loss)
    assert first == pytest.approx(second, abs=1e-9)  # that is what affine means
    own = F.one_hot(labels, NUM_CLASSES).float()
    changed_target, mixed_target = mix_targets(own, draw.partner, kept=draw.kept, lam=lam)
    for objective, expected in (("l1", first), ("l2", second), ("paper", first + second)):
        mix = PatchUp(model, objective=objective)  # type: ignore[arg-type]
        _, target = mix(images, labels, draw=draw)
        assert mix.loss(output, target, criterion).item() == pytest.approx(expected, abs=2e-6)
        general = patchup_loss(
            output,
            target=own,
            changed_target=changed_target,
            mixed_target=mixed_target,
            kept=draw.kept,
            criterion=F.cross_entropy if criterion is None else for_soft_targets(criterion),
            objective=objective,  # type: ignore[arg-type]
        )
        assert general.item() == pytest.approx(expected, abs=2e-6)
        mix.detach()


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    return (output.softmax(1) - target).square().sum(1).mean()


def thresholded(logits: list[float], target: list[float]) -> float:
    return oracle.binary_cross_entropy(logits, [1.0 if t > 0.2 else 0.0 for t in target])


class HalvedCrossEntropy(nn.CrossEntropyLoss):
    """A subclass of an affine criterion that is not affine: it squares its target."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input, target.square())


def squared_target(logits: list[float], target: list[float]) -> float:
    return oracle.cross_entropy(logits, [t**2 for t in target])


NOT_AFFINE: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Loss]] = {
    "threshold": (BinaryCrossEntropy(smoothing=0.0, target_threshold=0.2), thresholded),
    "squared_error": (squared_error, oracle.squared_error),
    "subclass": (HalvedCrossEntropy(), squared_target),
}


@pytest.mark.parametrize("lam", [0.0, 0.375])
@pytest.mark.parametrize("name", NOT_AFFINE)
def test_general_form_is_the_objective_where_it_is_not(name: str, lam: float, model: nn.Module) -> None:
    criterion, sample_loss = NOT_AFFINE[name]
    images, labels, draw = by_hand(9, lam)  # W holds 0.1 of the partner: below the threshold, where Y is above it
    output = torch.randn(4, NUM_CLASSES)
    first, second = expected_terms(output, labels, draw, sample_loss)
    assert not isclose(first, second, abs_tol=1e-3)
    for objective, expected in (("l1", first), ("l2", second), ("paper", first + second)):
        mix = PatchUp(model, objective=objective)  # type: ignore[arg-type]
        _, target = mix(images, labels, draw=draw)
        assert mix.loss(output, target, criterion).item() == pytest.approx(expected, abs=2e-6)
        mix.detach()


@pytest.mark.parametrize("objective", ["paper", "l1", "l2"])
def test_objective_with_a_mask_for_each_sample(objective: str, model: nn.Module, labels: Tensor) -> None:
    changed = torch.rand(4, 1, 2, 5) < torch.tensor([0.1, 0.4, 0.7, 0.9]).reshape(4, 1, 1, 1)
    kept = torch.tensor([oracle.portion_unchanged(holes) for holes in changed.flatten(1).tolist()])
    draw = Draw("input", torch.tensor([1, 2, 3, 0]), 0.0, changed, kept)
    mix = PatchUp(model, mask="sample", objective=objective)  # type: ignore[arg-type]
    output = torch.randn(4, NUM_CLASSES)
    _, target = mix(torch.randn(4, 3, 2, 5), labels, draw=draw)

    def each(output: Tensor, target: Tensor) -> Tensor:
        return (output.softmax(1) - target).square().sum(1)

    for criterion, sample_loss in ((None, oracle.cross_entropy), (each, oracle.squared_error)):
        first, second = expected_terms(output, labels, draw, sample_loss)
        expected = {"l1": first, "l2": second, "paper": first + second}[objective]
        assert mix.loss(output, target, criterion).mean().item() == pytest.approx(expected, abs=2e-6)


# Targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing_is_timms(smoothing: float, model: nn.Module) -> None:
    images, labels, draw = by_hand(7, 0.0)
    draw = Draw("input", torch.tensor([3, 2, 1, 0]), 0.0, draw.changed, draw.kept)  # timm's partner: the batch reversed
    mix = PatchUp(model, label_smoothing=smoothing)
    _, target = mix(images, labels, draw=draw)
    torch.testing.assert_close(target, mixup_target(labels, NUM_CLASSES, lam=0.7, smoothing=smoothing))
    mix.mixup_enabled = False
    _, target = mix(images, labels)
    torch.testing.assert_close(target, mixup_target(labels, NUM_CLASSES, lam=1.0, smoothing=smoothing))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_soft_targets_may_be_given(dtype: torch.dtype, smoothing: float, model: nn.Module) -> None:
    images, labels, draw = by_hand(7, 0.375)
    mix = PatchUp(model, label_smoothing=smoothing)
    _, from_labels = mix(images, labels, draw=draw)
    given = F.one_hot(labels, NUM_CLASSES).to(dtype)
    before = given.clone()
    _, from_soft = mix(images, given, draw=draw)
    assert torch.equal(from_labels, from_soft)
    assert from_soft.dtype is torch.float32
    assert torch.equal(given, before)
    own = torch.rand(4, NUM_CLASSES).softmax(1)
    _, target = mix(images, own, draw=draw)
    rows = [oracle.smoothed(row, smoothing) for row in own.double().tolist()]
    for i, j in enumerate(draw.partner.tolist()):
        expected = oracle.reweighted_target(rows[i], rows[j], 0.7, 0.375)
        assert target[i].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_targets_are_distributions(
    mode: str, smoothing: float, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    mix = PatchUp(model, mode=mode, prob=0.8, label_smoothing=smoothing)  # type: ignore[arg-type]
    for _ in range(10):
        x, target = mix(images, labels)
        model(x)
        assert target.shape == (4, NUM_CLASSES)
        assert (target >= 0).all()
        assert target.sum(1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)


# Replay and state


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("site", ["input", "stage1"])
def test_a_draw_can_be_replayed(site: str, mode: str, model: nn.Module, images: Tensor, labels: Tensor) -> None:
    mix = PatchUp(model, mode=mode, prob=1.0, sites=[site])  # type: ignore[arg-type]
    x, target = mix(images, labels)
    output, draw, state = model(x), drawn(mix), mix.state_dict()
    other, _ = mix(images, labels)
    model(other)
    state = mix.state_dict()
    again, target_again = mix(images, labels, draw=draw)
    assert mix.draw is draw
    assert torch.equal(again, x)
    assert torch.equal(target_again, target)
    assert torch.equal(model(again), output)
    assert mix.state_dict() == state


def test_a_resumed_mixer_goes_on_exactly(make_model: MakeModel, images: Tensor, labels: Tensor) -> None:
    def run(mix: PatchUp, batches: int) -> list[Draw]:
        draws = []
        for _ in range(batches):
            x, _ = mix(images, labels)
            mix.model(x)
            draws.append(drawn(mix))
        return draws

    first = PatchUp(make_model(), mode="soft", prob=0.8, seed=7)
    run(first, 4)
    state = first.state_dict()
    expected = run(first, 12)
    resumed = PatchUp(make_model(), mode="soft", prob=0.8, seed=0)
    resumed.load_state_dict(state)
    for one, same in zip(expected, run(resumed, 12)):
        assert (one.site, one.lam) == (same.site, same.lam)
        assert torch.equal(one.partner, same.partner)
        assert torch.equal(one.kept, same.kept)
        assert (one.changed is None) == (same.changed is None)
        assert one.changed is None or torch.equal(one.changed, same.changed)  # type: ignore[arg-type]
    assert resumed.state_dict() == first.state_dict() == {"seed": 7, "count": 16}
    assert len({draw.lam for draw in expected}) > 2


# Switches


def test_mixup_enabled_switches_mixing_off_and_on(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    mix.mixup_enabled = False
    x, target = mix(images, labels)
    output = model(x)
    assert torch.equal(output, clean(images))
    assert torch.equal(target, F.one_hot(labels, NUM_CLASSES).float())
    assert mix.loss(output, target).item() == pytest.approx(F.cross_entropy(output, labels).item(), abs=1e-6)
    assert mix.state_dict()["count"] == 0
    mix.mixup_enabled = True
    x, _ = mix(images, labels)
    assert not torch.equal(model(x), clean(images))


def test_eval_mode_is_left_alone(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model).eval()
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    model.eval()
    x, target = mix(images, labels)
    output = model(x)
    assert x is images
    assert torch.equal(output, clean(images))
    assert torch.equal(target, F.one_hot(labels, NUM_CLASSES).float())
    assert mix.loss(output, target).item() == pytest.approx(F.cross_entropy(output, labels).item(), abs=1e-6)
    assert mix.state_dict()["count"] == 0
    # A draw that is armed waits while the model is evaluated.
    model.train()
    x, target = mix(images, labels)
    model.eval()
    assert torch.equal(model(images), clean(images))
    model.train()
    model(x)
    mix.loss(output, target)


def test_paused_alters_nothing_inside_and_the_draw_waits(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, target = mix(images, labels)
    with mix.paused():
        assert torch.equal(model(images), clean(images))
        with mix.paused():
            assert torch.equal(model(images), clean(images))
        assert torch.equal(model(images), clean(images))
    output = model(x)
    assert not torch.equal(output, clean(images))
    expected = 2 * F.cross_entropy(output, target).item()
    assert mix.loss(output, target).item() == pytest.approx(expected, rel=1e-6)
    # After an error inside, too.
    with pytest.raises(ZeroDivisionError), mix.paused():
        raise ZeroDivisionError
    x, _ = mix(images, labels)
    assert not torch.equal(model(x), clean(images))


def test_mixing_while_paused_leaves_the_batch_as_it_is(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["input", "stage1"])
    for _ in range(6):
        x, _ = mix(images, labels)
        model(x)
        state = mix.state_dict()
        with mix.paused():
            with mix.paused():
                pass
            x, target = mix(images, labels)
            output = model(x)
            assert x is images
            assert drawn(mix).site is None
            assert torch.equal(target, F.one_hot(labels, NUM_CLASSES).float())
            plain = F.cross_entropy(output, labels).item()
            assert mix.loss(output, target).item() == pytest.approx(plain, abs=1e-6)
        assert mix.state_dict() == state
        assert torch.equal(output, clean(images))
        assert torch.equal(model(images), clean(images))  # nothing is armed afterwards either


def test_detach_leaves_nothing_behind(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    names = {name: sorted(vars(module)) for name, module in model.named_modules()}
    assert hook_count(model) == 0
    mix = PatchUp(model, prob=1.0, sites=["stem", "stage1", "stage2"])
    assert hook_count(model) >= 3
    mix(images, labels)  # armed when it is detached
    mix.detach()
    assert hook_count(model) == 0
    assert {name: sorted(vars(module)) for name, module in model.named_modules()} == names
    assert torch.equal(model(images), clean(images))
    for (name, value), (_, before) in zip(model.state_dict().items(), clean.state_dict().items()):
        assert torch.equal(value, before), name
    assert torch.equal(model.eval()(images), clean.eval()(images))
    PatchUp(model)  # a new one fits


def test_probing_a_size_leaves_the_model_as_it_was(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    model.get_submodule("layer1").eval()
    before = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["stage2"])
    hooks = hook_count(model)
    mix(images, labels)
    for (name, value), (_, then) in zip(model.state_dict().items(), before.state_dict().items()):
        assert torch.equal(value, then), name
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert all(p.grad is None for p in model.parameters())
    assert hook_count(model) == hooks


def test_copies_of_the_model_are_not_altered(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = PatchUp(model, prob=1.0, sites=["stage1"])
    x, _ = mix(images, labels)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(images), clean(images))
        clean = copy.deepcopy(twin)
    assert not torch.equal(model(x), copy.deepcopy(model)(images))
    PatchUp(copy.deepcopy(model))  # a copy may have a mixer of its own


# The registry


def test_methods_and_their_defaults() -> None:
    assert {"hard_patchup", "soft_patchup", "none"} <= set(list_methods())
    assert list_methods() == sorted(list_methods())
    common = {"block_size": 7, "alpha": 2.0, "sites": None, "mask": "batch", "input_mask": "rectangle"}
    hard = {"mode": "hard", "prob": 0.7, "gamma": 0.5, "objective": "paper", "label_smoothing": 0.0} | common
    soft = {"mode": "soft", "prob": 1.0, "gamma": 0.75, "objective": "paper", "label_smoothing": 0.0} | common
    for name, expected in (("hard_patchup", hard), ("soft_patchup", soft)):
        defaults = {key: parameter.default for key, parameter in method_parameters(name).items()}
        assert expected.items() <= defaults.items()
    assert "gamma" not in method_parameters("none")


def test_create_mixer_makes_what_the_defaults_say(model: nn.Module) -> None:
    for name, expected in (
        ("hard_patchup", {"mode": "hard", "prob": 0.7, "gamma": 0.5, "block_size": [7, 7, 7, 7]}),
        ("soft_patchup", {"mode": "soft", "prob": 1.0, "gamma": 0.75, "block_size": [7, 7, 7, 7]}),
    ):
        mix = create_mixer(name, model)
        assert isinstance(mix, PatchUp)
        assert expected.items() <= mix.settings().items()
        assert mix.settings()["sites"] == ["input", "stem", "stage1", "stage2"]
        mix.detach()
        mix = create_mixer(name, model, gamma=0.25, sites=["stem"], seed=5)
        changed = {"gamma": 0.25, "sites": ["stem"], "block_size": [7], "seed": 5}
        assert (expected | changed).items() <= mix.settings().items()
        mix.detach()


def test_method_none_alters_nothing(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    clean = copy.deepcopy(model)
    mix = create_mixer("none", model, label_smoothing=0.1)
    for _ in range(3):
        x, target = mix(images, labels)
        output = model(x)
        assert x is images
        assert torch.equal(output, clean(images))
        torch.testing.assert_close(target, mixup_target(labels, NUM_CLASSES, smoothing=0.1))
        plain = F.cross_entropy(output, labels, label_smoothing=0.1).item()
        assert mix.loss(output, target).item() == pytest.approx(plain, abs=1e-6)
    # Any module will do, also one without named sites.
    other = create_mixer("none", tiny(), num_classes=NUM_CLASSES)
    assert other(images, labels)[0] is images
