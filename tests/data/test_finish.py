"""The last steps on the device: each operator against torchvision and timm, draws in their bands, memory used again."""

import random
from itertools import permutations

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torchvision.transforms import ColorJitter
from torchvision.transforms import functional as pil
from torchvision.transforms.v2 import functional as v2

from timm_patchup.data.augment_params import AugmentParams, DeviceAugment, jitter_steps
from timm_patchup.data.decode import to_pixels
from timm_patchup.data.finish import Buffers, Finish, jitter_, jitter_image_
from timm_patchup.data.global_seed import seed_everything
from timm_patchup.recipe import load_recipe
from timm_patchup.recipe.parts import AugmentSpec, ImageSpec

CPU = torch.device("cpu")
SPEC = ImageSpec(input_size=(3, 24, 32), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
PLAIN = ImageSpec(input_size=(3, 24, 32), mean=(0.0,) * 3, std=(1.0,) * 3)
FACTORS = {"brightness": 1.35, "contrast": 0.62, "saturation": 1.4}


def pictures(count: int, seed: int = 0) -> Tensor:
    """Return images of smooth colours, uint8 (count, 3, 24, 32)."""
    rng = np.random.default_rng(seed)
    coarse = [Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)).resize((32, 24)) for _ in range(count)]
    return torch.stack([to_pixels(image) for image in coarse])


def step(kind: str, factor: float) -> list[float]:
    return [factor, (1 - factor) * (kind == "saturation"), (1 - factor) * (kind == "contrast")]


@pytest.mark.parametrize("order", list(permutations(FACTORS)))
def test_jitter_in_every_order_matches_torchvision(order: tuple[str, ...]) -> None:
    """On floats exactly, up to its grey weights; on Pillow's bytes within the rounding of each of three steps."""
    images = pictures(5)
    got = images.float()
    jitter_(got, torch.tensor([[step(kind, FACTORS[kind]) for kind in order]]).expand(5, 3, 3))
    for image, changed in zip(images, got):
        single = image / 255
        stored: Image.Image = pil.to_pil_image(image)
        for kind in order:
            single = getattr(v2, f"adjust_{kind}")(single, FACTORS[kind])
            stored = getattr(pil, f"adjust_{kind}")(stored, FACTORS[kind])
        assert float((changed / 255 - single).abs().max()) < 2e-4
        # Pillow rounds down after every step, and what follows enlarges that by up to 1.4.
        assert float((changed - to_pixels(stored)).abs().max()) < 1 + 1.4 + 1.4**2 + 0.5


@pytest.mark.parametrize("kind", FACTORS)
@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.4])
def test_a_single_adjustment_matches_pillow_within_a_rounding_step(kind: str, factor: float) -> None:
    images = pictures(4)
    got = images.float()
    idle = [1.0, 0.0, 0.0]
    jitter_(got, torch.tensor([[step(kind, factor), idle, idle]]).expand(4, 3, 3))
    for image, changed in zip(images, got):
        expected = to_pixels(getattr(pil, f"adjust_{kind}")(pil.to_pil_image(image), factor))
        assert float((changed - expected).abs().max()) < 1.5


@pytest.mark.parametrize("channels", [1, 3])
def test_large_images_are_jittered_one_by_one_with_the_same_result(channels: int) -> None:
    """Bit for bit, in every order, with a step that changes nothing and one whose factor is 1."""
    seed_everything(3)
    steps = [jitter_steps(ColorJitter(0.4, 0.4, 0.4)) for _ in range(20)]
    steps += [[1.0, 0.0, 0.0] * 3, [*step("contrast", 1.0), *step("saturation", 0.0), *step("brightness", 1.4)]]
    drawn = torch.tensor(steps).view(-1, 3, 3)
    images = pictures(len(drawn))[:, :channels].float()
    together, singly = images.clone(), images.clone()
    jitter_(together, drawn)
    for image, one in zip(singly, drawn.tolist()):
        jitter_image_(image, one)
    assert torch.equal(together, singly)


def test_samples_of_a_batch_do_not_mix() -> None:
    """Chunks of any size and other samples in the batch change nothing."""
    images = pictures(7)
    augment = DeviceAugment(jitter=ColorJitter(0.4, 0.4, 0.4), lighting=0.1, erasing=False)
    draws = augment.stack([augment.draw() for _ in images])
    finish = Finish(SPEC, None, CPU)
    together = finish(images, draws)
    for number in range(7):
        one = AugmentParams(*(None if part is None else part[number : number + 1] for part in draws))
        assert torch.equal(finish(images[number : number + 1], one)[0], together[number])
    large = pictures(1).repeat(700, 1, 1, 1)  # more than a chunk
    assert torch.equal(finish(large), finish(large[:1]).expand(700, -1, -1, -1))


def test_grey_images_keep_their_grey() -> None:
    spec = ImageSpec(input_size=(1, 24, 32), mean=(0.0,), std=(1.0,))
    images = pictures(3)[:, :1]
    steps = torch.tensor([[step("saturation", 0.3), step("brightness", 0.5), step("contrast", 1.2)]]).expand(3, 3, 3)
    got = Finish(spec, None, CPU)(images, AugmentParams(jitter=steps))
    for image, changed in zip(images, got):
        expected = pil.adjust_contrast(pil.adjust_brightness(pil.to_pil_image(image), 0.5), 1.2)
        assert float((changed * 255 - to_pixels(expected)).abs().max()) < 2.9


def test_draws_of_jitter_have_torchvisions_distribution() -> None:
    """Factors are uniform in [0.6, 1.4], the six orders equally frequent; bands of four standard errors."""
    seed_everything(5)
    jitter, count = ColorJitter(0.4, 0.4, 0.4), 6000
    steps = torch.tensor([jitter_steps(jitter) for _ in range(count)]).view(count, 3, 3)
    factors, pixel, mean = steps.unbind(dim=2)
    kinds = torch.where(pixel != 0, 2, torch.where(mean != 0, 1, 0))
    assert bool((kinds.sort(dim=1).values == torch.arange(3)).all()), "each adjustment once"
    torch.testing.assert_close(pixel + mean, torch.where(kinds > 0, 1 - factors, torch.zeros(())))
    for kind in range(3):
        drawn = factors[kinds == kind]
        assert 0.6 <= float(drawn.min()) < 0.61
        assert 1.39 < float(drawn.max()) <= 1.4
        assert abs(float(drawn.mean()) - 1.0) < 4 * 0.8 / 12**0.5 / count**0.5
        assert abs(float(drawn.var()) - 0.64 / 12) < 4 * 0.64 / 180**0.5 / count**0.5
    orders = (kinds * torch.tensor([9, 3, 1])).sum(dim=1)
    _, frequency = orders.unique(return_counts=True)
    assert len(frequency) == 6
    assert float((frequency / count - 1 / 6).abs().max()) < 4 * (5 / 36 / count) ** 0.5


def test_lighting_shifts_colours_along_the_principal_axes() -> None:
    seed_everything(1)
    augment = DeviceAugment(jitter=None, lighting=0.1, erasing=False)
    draws = augment.stack([augment.draw() for _ in range(4000)])
    assert draws.shift is not None
    assert draws.jitter is None
    shifts = draws.shift.double()
    values = torch.linalg.eigvalsh(shifts.T @ shifts / len(shifts)).sqrt().flip(0)
    torch.testing.assert_close(values, 0.1 * torch.tensor([0.2175, 0.0188, 0.0045]).double(), rtol=0.05, atol=1e-4)
    images = pictures(4)
    got = Finish(PLAIN, None, CPU)(images, AugmentParams(shift=draws.shift[:4]))
    torch.testing.assert_close(got - images / 255, draws.shift[:4, :, None, None].expand_as(got), rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
def test_erasing_is_timms_with_a_seed_per_sample(mode: str) -> None:
    recipe = load_recipe("imagenet_none", {"reprob": 0.6, "remode": mode, "recount": 2})
    finish = Finish(SPEC, AugmentSpec.of(recipe), CPU)
    images = pictures(40)
    seeds = torch.arange(40) + 1000
    got, plain = finish(images, AugmentParams(erase=seeds)), Finish(SPEC, None, CPU)(images)
    timms = RandomErasing(0.6, mode=mode, max_count=2, device="cpu")
    for number in range(40):
        seed_everything(int(seeds[number]))
        assert torch.equal(got[number], timms(plain[number].clone()))
    erased = int((got != plain).flatten(1).any(dim=1).sum())
    assert 12 <= erased <= 36, "binomial with 40 and 0.6: four standard deviations around 24"


def test_statistics_of_training_images_are_those_of_timms_transforms() -> None:
    """Mean and variance of colours over many draws, before and after: Pillow's steps against those on the device.

    Pillow rounds down in each of three steps, which darkens by up to 1.5 levels of 255.
    """
    image = pictures(1, seed=3)
    jitter, count = ColorJitter(0.4, 0.4, 0.4), 3000
    seed_everything(2)
    augment = DeviceAugment(jitter=jitter, lighting=0.0, erasing=False)
    draws = augment.stack([augment.draw() for _ in range(count)])
    got = Finish(PLAIN, None, CPU)(image.expand(count, -1, -1, -1), draws) * 255
    stored = pil.to_pil_image(image[0])
    expected = torch.stack([to_pixels(jitter(stored)) for _ in range(count)]).float()
    for statistic, error in ((lambda x: x.mean(dim=(2, 3)), 2.0), (lambda x: x.std(dim=(2, 3)), 1.0)):
        mine, theirs = statistic(got), statistic(expected)  # (count, 3)
        standard_error = (mine.var(dim=0) / count + theirs.var(dim=0) / count).sqrt()
        assert bool(((mine.mean(dim=0) - theirs.mean(dim=0)).abs() < error + 4 * standard_error).all())
        torch.testing.assert_close(mine.std(dim=0), theirs.std(dim=0), rtol=0.1, atol=0.5)


def test_seeding_moves_all_three_generators() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    seed_everything(4)
    first = draw()
    assert draw() != first
    seed_everything(4, CPU)
    assert draw() == first
    torch.manual_seed(4)
    assert float(torch.rand(())) == first[2], "as torch.manual_seed"


def test_memory_is_used_again_only_if_nothing_is_left_in_it() -> None:
    buffers, shape = Buffers(), torch.Size((2, 3))
    first = buffers.empty(shape)
    place, view = first.data_ptr(), first[1:]
    del first
    second = buffers.empty(shape)
    assert second.data_ptr() != place, "a view is left"
    del view
    third = buffers.empty(shape)
    assert third.data_ptr() == place
    product = torch.ones(2, 3, requires_grad=True) * third
    del third
    fourth = buffers.empty(shape)
    assert fourth.data_ptr() != place, "the graph needs it"
    del product
    assert buffers.empty(shape).data_ptr() == place
    assert buffers.empty(torch.Size((5,))).shape == (5,)


def test_a_batch_is_not_overwritten_by_the_next() -> None:
    finish, images = Finish(SPEC, None, CPU), pictures(6)
    kept = [finish(images[number : number + 2]) for number in (0, 2, 4)]
    for number, batch in zip((0, 2, 4), kept):
        assert torch.equal(batch, finish(images[number : number + 2]))
