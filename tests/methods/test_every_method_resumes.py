"""A draw of every method can be replayed, and a mixer resumes exactly from its state."""

import pytest
import torch

from timm_patchup import Draw, Mixer

from .every_method import CASES, batch, last, mixer_of, same, step, tiny_net


@pytest.mark.parametrize("name", CASES)
def test_a_draw_can_be_replayed(name: str) -> None:
    mix = mixer_of(name, tiny_net())
    x, y = batch()
    for _ in range(6):
        mixed, target, output = step(mix, x, y)
        draw = last(mix)
        step(mix, x, y)
        state = mix.state_dict()
        again, target_again, output_again = step(mix, x, y, draw=draw)
        assert mix.draw is draw
        assert torch.equal(again, mixed)
        assert torch.equal(target_again, target)
        assert torch.equal(output_again, output)
        assert mix.state_dict() == state


@pytest.mark.parametrize("name", CASES)
def test_resume_is_exact_and_draws_differ(name: str) -> None:
    def draws_of(mix: Mixer, count: int) -> list[Draw]:
        draws = []
        for _ in range(count):
            step(mix, *batch())
            draws.append(last(mix))
        return draws

    some = {"prob": 0.8, "seed": 7}
    model = tiny_net()
    mix = mixer_of(name, model, **some)
    draws_of(mix, 3)
    state, again = mix.state_dict(), tiny_net()
    again.load_state_dict(model.state_dict())  # Puzzle Mix looks at the model
    expected = draws_of(mix, 8)
    resumed = mixer_of(name, again, **some | {"seed": 0})
    resumed.load_state_dict(state)
    assert all(same(one, other) for one, other in zip(expected, draws_of(resumed, 8), strict=True))
    assert name == "none" or not all(same(expected[0], other) for other in expected[1:])
    fresh = mixer_of(name, tiny_net(), **some)
    assert name == "none" or not all(same(one, other) for one, other in zip(expected, draws_of(fresh, 8)))
