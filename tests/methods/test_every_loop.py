"""Every row of the table trains, accumulates gradients, compiles and resumes exactly; two processes are elsewhere."""

import copy

import pytest
import torch
from torch import Tensor, nn

from .every_loop import LOOPS, OWN, UPDATES
from .every_method import METHODS


def weights(model: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


def test_the_table_has_every_method_and_option() -> None:
    assert {*METHODS} <= {*LOOPS}
    assert len(METHODS) >= 10
    made = {name: loop.mixer(loop.model()) for name, loop in LOOPS.items()}
    options = [(key, value) for mix in made.values() for one in mix.method.members for key, value in vars(one).items()]
    for wanted in (("lam", "sample"), ("mask", "sample"), ("coverage", "exact"), ("at", "all")):
        assert wanted in options, wanted
    assert any(len(mix.method.members) > 1 for mix in made.values())
    assert any(mix.schedule.is_needed for mix in made.values())
    assert any(mix.num_splits > 1 for mix in made.values())


@pytest.mark.parametrize("name", LOOPS)
def test_training_resumes_exactly(name: str) -> None:
    loop, model = LOOPS[name], LOOPS[name].model()
    start, mix = weights(model), loop.mixer(model)
    loop.train(model, mix, range(2))
    state, again = mix.state_dict(), loop.model()
    again.load_state_dict(model.state_dict())
    loop.train(model, mix, range(2, UPDATES))
    resumed = loop.mixer(again)
    resumed.load_state_dict(state)
    loop.train(again, resumed, range(2, UPDATES))
    assert all(map(torch.equal, weights(again), weights(model)))
    assert all(value.isfinite().all() for value in weights(model))
    assert not any(torch.equal(value, before) for value, before in zip(weights(model), start) if value.ndim > 1)
    plain = loop.model()
    off = loop.mixer(plain)
    off.mixup_enabled = False
    loop.train(plain, off, range(UPDATES))
    assert all(map(torch.equal, weights(plain), weights(model))) == (name == "none"), "the batches were mixed"


@pytest.mark.parametrize("name", LOOPS)
def test_accumulated_gradients_are_the_mean_of_those_of_the_micro_batches(name: str) -> None:
    loop, model = LOOPS[name], LOOPS[name].model()
    apart = copy.deepcopy(model)
    loop.train(model, loop.mixer(model), range(1))
    mix, parameters = loop.mixer(apart), list(apart.parameters())
    mix.set_epoch(0)
    gradients = []
    for seed in range(2):
        x, target = mix(*loop.batch(seed))
        gradients.append(torch.autograd.grad(mix.loss(apart(x), target, loop.criterion), parameters))
    for found, one, other in zip(model.parameters(), *gradients):
        torch.testing.assert_close(found.grad, (one + other) / 2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OWN)  # test_every_method_trains.py compiles the others, and counts their graphs
def test_compiled_training_matches_eager_code(name: str) -> None:
    torch._dynamo.reset()
    loop, model = LOOPS[name], LOOPS[name].model()
    twin = loop.model()
    loop.train(model, loop.mixer(model), range(UPDATES))
    mix = loop.mixer(twin)
    loop.train(twin, mix, range(UPDATES), torch.compile(twin, backend="aot_eager", fullgraph=True))
    for value, compiled in zip(weights(model), weights(twin)):
        torch.testing.assert_close(value, compiled, rtol=1e-3, atol=1e-5)
