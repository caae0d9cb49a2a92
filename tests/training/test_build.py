"""Parts made from recipes: schedules, weight decay, losses; one step of every benchmark with every method."""

import pytest
import torch
from torch import nn

from tests.support.recipes import load_complete
from timm_patchup.core.loss import bce_softmax, is_affine
from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.recipe.compose import list_benchmarks, list_recipe_methods
from timm_patchup.training.build import (
    build_criterion,
    build_mixer,
    build_model,
    build_optimizer,
    build_scheduler,
    describe_batch,
)


def rates(recipe: Recipe, epochs: list[int]) -> list[float]:
    """Return the learning rate in the given epochs, counted from 0."""
    optimizer = build_optimizer(recipe, nn.Linear(2, 2))
    scheduler, _ = build_scheduler(recipe, optimizer, updates_per_epoch=7)
    found = []
    for epoch in epochs:
        scheduler.step(epoch)
        found.append(optimizer.param_groups[0]["lr"])
    return found


def test_the_papers_steps_to_the_epoch() -> None:
    preact = load_recipe("cifar10_preactresnet18_none")
    assert rates(preact, [0, 499, 500, 999, 1000, 1499, 1500, 1999]) == pytest.approx(
        [0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4]
    )
    wide = load_recipe("svhn_wrn28_10_none")
    assert rates(wide, [0, 199, 200, 299, 300, 399]) == pytest.approx([0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3])
    imagenet = load_recipe("imagenet_none")
    assert rates(imagenet, [0, 74, 75, 149, 150, 224, 225, 299]) == pytest.approx(
        [0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4]
    )


def test_the_papers_steps_to_the_update() -> None:
    recipe = load_recipe("svhn_wrn28_10_none", {"sched_on_updates": True})
    optimizer = build_optimizer(recipe, nn.Linear(2, 2))
    scheduler, _ = build_scheduler(recipe, optimizer, updates_per_epoch=7)
    found = []
    for update in (0, 200 * 7 - 1, 200 * 7, 300 * 7 - 1, 300 * 7):
        scheduler.step_update(update)
        found.append(optimizer.param_groups[0]["lr"])
    assert found == pytest.approx([0.1, 0.1, 0.01, 0.01, 1e-3])


def test_warm_up_cosine_and_cool_down() -> None:
    recipe = load_recipe("fashion_mini_none", {"epochs": 10, "warmup_epochs": 2, "cooldown_epochs": 3, "min_lr": 0.01})
    optimizer = build_optimizer(recipe, nn.Linear(2, 2))
    _, epochs = build_scheduler(recipe, optimizer, updates_per_epoch=7)
    assert epochs == 13
    found = rates(recipe, [0, 1, 5, 10, 12])
    assert found[0] == pytest.approx(1e-5)
    assert found[1] > found[0]
    assert found[2] == pytest.approx(0.01 + 0.045)
    assert found[3:] == pytest.approx([0.01, 0.01])
    assert build_scheduler(load_recipe("fashion_mini_none", {"sched": "none"}), optimizer, 7)[0] is None


def test_weight_decay_is_on_all_weights_as_in_the_paper() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    groups = build_optimizer(load_recipe("cifar10_wrn28_10_none"), model).param_groups
    assert [group["weight_decay"] for group in groups] == [1e-4]
    assert groups[0]["nesterov"]
    as_timm = build_optimizer(load_recipe("cifar10_wrn28_10_none", {"filter_bias_and_bn": True}), model).param_groups
    assert sorted(group["weight_decay"] for group in as_timm) == [0.0, 1e-4]


def test_losses() -> None:
    output, target = torch.randn(5, 4), torch.rand(5, 4).softmax(dim=1)
    authors = build_criterion(load_recipe("fashion_mini_none", {"loss": "bce_softmax"}))
    assert authors is bce_softmax
    probabilities = output.softmax(dim=1)
    expected = -(target * probabilities.log() + (1 - target) * (1 - probabilities).log()).mean()
    torch.testing.assert_close(authors(output, target), expected)
    assert is_affine(authors)
    bce = build_criterion(load_recipe("fashion_mini_none", {"loss": "bce"}))
    torch.testing.assert_close(bce(output, target), nn.functional.binary_cross_entropy_with_logits(output, target))


def test_the_authors_loss_has_the_short_objective(make_model) -> None:
    """L1 + L2 written out equals the short form that a mixer uses for a loss that is affine in its target."""
    recipe = load_recipe("fashion_mini_hard_patchup", {"loss": "bce_softmax", "mix_prob": 1.0, "mix_sites": ["stem"]})
    model = make_model()
    mix = build_mixer(recipe, model)
    x, y = torch.randn(6, 3, 32, 32), torch.arange(6)
    mixed, target = mix(x, y)
    output = model(mixed)
    own, partner = nn.functional.one_hot(y, 10).float(), nn.functional.one_hot(y[mix.draw.partner], 10).float()
    kept = mix.draw.kept
    expected = kept * bce_softmax(output, own) + (1 - kept) * bce_softmax(output, partner) + bce_softmax(output, target)
    torch.testing.assert_close(mix.loss(output, target, build_criterion(recipe)), expected)


def test_batches_are_described() -> None:
    recipe = load_recipe("imagenet_none", {"grad_accum_steps": 2})
    assert describe_batch(recipe, 8) == "batch 256 = 8 processes x 2 accumulation steps x 16 images"
    assert describe_batch(load_recipe("imagenet_none"), 1) == "batch 256 = 1 process x 256 images"
    splits = load_recipe("cifar10_wrn28_10_jsd_none")
    assert describe_batch(splits, 2) == "batch 100 = 2 processes x 50 images, each in 3 splits"


def test_all_benchmarks_are_found() -> None:
    assert len(list_benchmarks()) >= 15


@pytest.mark.parametrize("benchmark", list_benchmarks())
def test_every_benchmark_steps_once_with_every_method(benchmark: str) -> None:
    """The real networks, on images with a quarter of the side length."""
    model = build_model(load_complete(f"{benchmark}_none"))
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for method in list_recipe_methods():
        recipe = load_complete(f"{benchmark}_{method}")
        channels, height, width = recipe.input_size
        model.load_state_dict(start)
        mix = build_mixer(recipe, model)
        optimizer = build_optimizer(recipe, model)
        before = next(model.parameters()).detach().clone()
        splits = recipe.aug_splits or 1
        images = torch.randn(2 * splits, channels, height // 4, width // 4)
        labels = torch.tensor([0, recipe.num_classes - 1]).repeat(splits)
        mixed, target = mix(images, labels)
        loss = mix.loss(model(mixed), target, build_criterion(recipe))
        loss.backward()
        optimizer.step()
        model.zero_grad()
        mix.detach()
        assert loss.isfinite(), method
        assert target.shape == (2 * splits, recipe.num_classes)
        assert not torch.equal(next(model.parameters()), before), method


def test_bce_of_timm_with_threshold_and_sum() -> None:
    output, target = torch.randn(4, 10), torch.rand(4, 10).softmax(dim=1)
    plain = build_criterion(Recipe(loss="bce"))(output, target)
    summed = build_criterion(Recipe(loss="bce", bce_sum=True))(output, target)
    torch.testing.assert_close(summed, 10 * plain)
    rounded = build_criterion(Recipe(loss="bce", bce_target_thresh=0.1))(output, target)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(output, (target > 0.1).float())
    torch.testing.assert_close(rounded, expected)
