"""One update of a learner is the step of a plain training loop: mix, forward, loss, backward, optimizer."""

import copy

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from timm.utils import ModelEmaV3

from timm_patchup.recipe import load_recipe
from timm_patchup.runs.accelerator import make_accelerator
from timm_patchup.training.build import build_criterion, build_mixer, build_model, build_optimizer
from timm_patchup.training.learner import Learner


@pytest.mark.parametrize("method", ["hard_patchup", "cutmix", "dropblock", "none"])
def test_an_update_is_the_step_of_a_plain_loop(method: str) -> None:
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    recipe = load_recipe(f"fashion_mini_{method}", {"sched": "none", "batch_size": 8})
    learner = Learner(recipe, make_accelerator(threads=1), updates_per_epoch=3)
    learner.model.train()
    model = build_model(recipe)
    model.load_state_dict(learner.unwrapped_model.state_dict())
    mix, criterion, optimizer = build_mixer(recipe, model), build_criterion(recipe), build_optimizer(recipe, model)
    losses, nlls, right = [], [], 0.0
    for done in range(3):
        images, labels = torch.randn(8, *recipe.input_size), torch.randint(recipe.num_classes, (8,))
        learner.update(iter([(images, labels)]), done)
        mixed, target = mix(images, labels)
        output = model(mixed)
        loss = mix.loss(output, target, criterion)
        loss.backward()
        nlls.append(-(target * output.detach().log_softmax(1)).sum(1).mean().item())
        right += (output.argmax(1) == target.argmax(1)).sum().item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    trained = learner.unwrapped_model.state_dict()
    assert all(torch.equal(trained[name], value) for name, value in model.state_dict().items())
    means = learner.pop_epoch()
    assert means["train_loss"] == pytest.approx(sum(losses) / 3)
    assert means["train_nll"] == pytest.approx(sum(nlls) / 3)
    assert means["train_top1"] == pytest.approx(100.0 * right / 24)
    assert not learner.sums.any()


def test_the_train_loss_compares_with_the_validation_loss() -> None:
    """Neither the paper's factor of two nor smoothing is in it: on a batch left alone it is the loss of validation."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    keys = {"smoothing": 0.2, "mix_prob": 0.0, "sched": "none", "batch_size": 8, "loss": "bce"}
    learner = Learner(load_recipe("fashion_mini_hard_patchup", keys), make_accelerator(threads=1), updates_per_epoch=3)
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    learner.model.train()
    with torch.no_grad():
        output = copy.deepcopy(learner.unwrapped_model)(images)
    learner.update(iter([(images, labels)]), 0)
    means = learner.pop_epoch()
    assert means["train_nll"] == pytest.approx(torch.nn.functional.cross_entropy(output, labels).item(), rel=1e-5)
    assert means["train_top1"] == pytest.approx(100.0 * (output.argmax(1) == labels).float().mean().item())
    assert means["train_loss"] != pytest.approx(means["train_nll"], rel=0.1)


@pytest.mark.parametrize("warmup", [False, True])
def test_the_average_matches_timms_script(warmup: bool) -> None:
    """Which counts updates from 1: the average begins as a copy and moves from the second update on."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    keys = {"model_ema": True, "model_ema_decay": 0.75, "model_ema_warmup": warmup, "sched": "none", "batch_size": 8}
    learner = Learner(load_recipe("fashion_mini_none", keys), make_accelerator(threads=1), updates_per_epoch=4)
    learner.model.train()
    expected = ModelEmaV3(learner.unwrapped_model, decay=0.75, use_warmup=warmup)
    for update in range(4):
        images, labels = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
        learner.update(iter([(images, labels)]), update)
        expected.update(learner.unwrapped_model, step=update + 1)
    averaged = learner.evaluated_model.state_dict()
    assert all(torch.equal(averaged[name], value) for name, value in expected.module.state_dict().items())
