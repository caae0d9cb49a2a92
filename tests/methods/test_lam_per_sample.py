"""One lam per sample: its distribution, and draws made by hand; the rest is in the tests of every case."""

import pytest
import torch

from tests.conftest import NUM_CLASSES, within
from timm_patchup import Draw, create_mixer
from timm_patchup.core.draw import Mix
from timm_patchup.core.sampling import beta, betas

from .every_method import batch, last, mixer_of, one_hot, step, tiny_net


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_lams_are_independent_and_beta(alpha: float) -> None:
    generator = torch.Generator().manual_seed(0)
    found = betas(20000, alpha, generator)
    assert found.shape == (20000,)
    assert found.dtype is torch.float32
    variance = 1.0 / (4.0 * (2.0 * alpha + 1.0))
    assert within(found.sum().item(), 20000, 0.5, variance=variance, bound=0.5)
    assert within(((found - 0.5) ** 2).sum().item(), 20000, variance, variance=variance / 4, bound=0.25)
    assert within(((found[1:] - 0.5) * (found[:-1] - 0.5)).sum().item(), 19999, 0.0, variance=variance, bound=0.25)
    assert betas(1, alpha, generator.manual_seed(3)).item() == pytest.approx(beta(alpha, generator.manual_seed(3)))


@pytest.mark.parametrize("name", ["mixup", "manifold_mixup", "soft_patchup"])
def test_every_sample_has_its_own_lam_in_features_and_target(name: str) -> None:
    mix = mixer_of(name, tiny_net(), lam="sample", sites=["first"])
    x, y = batch()
    _, target, _ = step(mix, x, y)
    lam, kept, own = last(mix).lam, last(mix).kept, one_hot(y)
    assert isinstance(lam, torch.Tensor)
    assert lam.shape == (len(x),)
    assert len(lam.unique()) == len(x)
    share = (kept + (1.0 - kept) * lam)[:, None]
    torch.testing.assert_close(target, share * own + (1.0 - share) * own[last(mix).partner])


def test_equal_lams_are_one_lam() -> None:
    x, y = batch()
    mask, partner = torch.rand(1, 4, 12, 10) < 0.5, torch.tensor([1, 2, 3, 4, 5, 0])
    found = []
    for lam in (0.3, torch.full((6,), 0.3)):
        model = tiny_net()
        mix = create_mixer("soft_patchup", model, sites=["first"], num_classes=NUM_CLASSES)
        mixed, target = mix(x, y, draw=Draw("first", partner, Mix(mask, lam)))
        loss = mix.loss(model(mixed), target)
        loss.backward()
        found.append([loss.detach(), target, *(p.grad for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("lam", "message"),
    [
        (torch.full((5,), 0.5), r"^draw\.lam has shape \(5,\), the batch needs a number or \(6,\)$"),
        (torch.full((6,), 1.5), r"^draw\.lam must be a number in \[0, 1\], got 1\.5$"),
        (torch.full((6, 1), 0.5), r"^draw\.lam has shape \(6, 1\)"),
    ],
)
def test_a_wrong_lam_of_a_draw_made_by_hand_is_refused(lam: torch.Tensor, message: str) -> None:
    mix = mixer_of("mixup", tiny_net())
    with pytest.raises(ValueError, match=message):
        mix(*batch(), draw=Draw("input", torch.arange(6), Mix(torch.ones(1, 1, 1, 1) > 0, lam)))
