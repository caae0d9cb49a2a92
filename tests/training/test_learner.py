"""One update of a learner is the step of a plain training loop: mix, forward, loss, backward, optimizer."""

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState

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
    losses = []
    for done in range(3):
        images, labels = torch.randn(8, *recipe.input_size), torch.randint(recipe.num_classes, (8,))
        learner.update(iter([(images, labels)]), done)
        mixed, target = mix(images, labels)
        loss = mix.loss(model(mixed), target, criterion)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    trained = learner.unwrapped_model.state_dict()
    assert all(torch.equal(trained[name], value) for name, value in model.state_dict().items())
    assert learner.pop_epoch_loss() == pytest.approx(sum(losses) / 3)
