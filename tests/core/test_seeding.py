"""The stream of draws is repeatable, differs between ranks and leaves global randomness alone; so do derived seeds."""

import pickle
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from timm_patchup import PatchUp
from timm_patchup.core.sampling import Stream, derive_seed


def test_derived_seeds_follow_from_their_parts_alone() -> None:
    parts = [(a, b, c) for a in range(12) for b in range(4) for c in range(12)]
    seeds = [derive_seed(*each) for each in parts]
    assert seeds == [derive_seed(*each) for each in parts]
    assert len(set(seeds)) == len(seeds), "by chance once in 26,000"
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert derive_seed(1) != derive_seed(1, 0)


def numbers(stream: Stream, batches: int = 3) -> list[list[float]]:
    return [torch.rand(4, generator=stream.next()).tolist() for _ in range(batches)]


def test_stream_repeats_for_the_same_seed_and_count() -> None:
    assert numbers(Stream(5)) == numbers(Stream(5))
    drawn = numbers(Stream(5), 6)
    assert len({tuple(row) for row in drawn}) == 6
    late = Stream(0)
    late.load_state_dict({"seed": 5, "count": 4})
    assert numbers(late, 2) == drawn[4:]


def test_stream_does_not_depend_on_how_much_a_batch_drew() -> None:
    short, long = Stream(5), Stream(5)
    torch.rand(1, generator=short.next())
    torch.rand(1000, generator=long.next())
    assert numbers(short) == numbers(long)


def test_stream_differs_between_seeds() -> None:
    seen = {tuple(numbers(Stream(seed), 1)[0]) for seed in range(50)}
    assert len(seen) == 50


def test_stream_differs_between_ranks_and_its_state_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, states = [], []
    for rank in ("0", "1", "2"):
        monkeypatch.setenv("RANK", rank)
        stream = Stream(5)
        drawn.append(numbers(stream))
        states.append(stream.state_dict())
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
    assert states[0] == states[1] == states[2] == {"seed": 5, "count": 3}
    monkeypatch.delenv("RANK")
    assert numbers(Stream(5)) == drawn[0]


def test_stream_continues_exactly_from_its_state() -> None:
    stream = Stream(9)
    numbers(stream, 5)
    state = stream.state_dict()
    rest = numbers(stream, 5)
    again = Stream(1)
    again.load_state_dict(state)
    assert numbers(again, 5) == rest
    assert again.state_dict() == stream.state_dict()


@pytest.mark.parametrize(
    "state",
    [
        {},
        None,
        [1, 2],
        {"seed": 1},
        {"count": 1},
        {"seed": "a", "count": 1},
        {"seed": 1, "count": None},
        {"seed": 1.7, "count": 2},
        {"seed": 1, "count": -5},
    ],
    ids=str,
)
def test_stream_refuses_a_bad_state(state: object) -> None:
    stream = Stream(5)
    with pytest.raises(ValueError, match="state of a mixer must hold the integers seed and count, got"):
        stream.load_state_dict(state)  # type: ignore[arg-type]
    assert stream.state_dict() == {"seed": 5, "count": 0}


@pytest.mark.parametrize("site", ["input", "stem", "stage1", "stage2"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_global_randomness_is_neither_read_nor_moved(
    mode: str, site: str, model: nn.Module, images: Tensor, labels: Tensor
) -> None:
    def global_states() -> list[object]:
        return [torch.get_rng_state().tolist(), pickle.dumps(np.random.get_state()), random.getstate()]

    draws = []
    for seed in (1, 2):  # other global seeds, the same draws
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        mix = PatchUp(model, mode=mode, prob=1.0, sites=[site], seed=3)  # type: ignore[arg-type]
        before = global_states()
        for _ in range(3):
            x, target = mix(images, labels)
            mix.loss(model(x), target)
            draws.append(mix.draw)
        assert global_states() == before
        mix.detach()
    for one, same in zip(draws[:3], draws[3:]):
        assert one is not None
        assert same is not None
        assert one.site == same.site == site
        assert torch.equal(one.partner, same.partner)
        assert one.lam == same.lam
        assert one.changed is not None
        assert same.changed is not None
        assert torch.equal(one.changed, same.changed)
