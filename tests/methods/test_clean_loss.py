"""The loss of the unmixed images, ``clean_lam``: gradients match both losses under plain autograd, everywhere."""

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from timm_patchup import Mixer, MixTask, OneOf, create_mixer
from timm_patchup.core.loss import bce_softmax
from timm_patchup.errors import UserError
from timm_patchup.methods.cutmix import CutMix
from timm_patchup.methods.puzzle_mix import PuzzleMix

from .every_method import TinyNet, batch, last, one_hot, tiny_net

LAM = 0.7
Loss = Callable[[Tensor, Tensor], Tensor]


def mixer_of(model: nn.Module, **settings: Any) -> Mixer:
    return create_mixer("puzzle_mix", model, num_classes=10, **({"clean_lam": LAM} | settings))


def grads_of(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(first: list[Tensor], second: list[Tensor], *, tolerance: float = 1e-6) -> None:
    assert len(first) == len(second) > 0
    for one, other in zip(first, second):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=tolerance)


def by_hand(model: nn.Module, mixed: Tensor, target: Tensor, x: Tensor, y: Tensor, loss: Loss) -> list[Tensor]:
    """Return the gradients of both losses, each by a separate backward pass through a copy without hooks."""
    model = copy.deepcopy(model)
    model.zero_grad()
    loss(model(mixed), target).backward()
    (LAM * loss(model(x), one_hot(y))).backward()
    return grads_of(model)


LOSSES: dict[str, Loss | None] = {
    "default": None,
    "torch's": nn.CrossEntropyLoss(),
    "the authors'": bce_softmax,
    "timm's bce": BinaryCrossEntropy(0.0),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("objective", ["l2", "paper"])
def test_gradients_are_those_of_both_losses(loss: Loss | None, objective: str) -> None:
    model, (x, y) = tiny_net(), batch()
    mix = mixer_of(model, objective=objective)
    mixed, target = mix(x, y)
    plain = loss or F.cross_entropy
    weight = 2.0 if objective == "paper" else 1.0
    expected = by_hand(
        model, mixed, target, x, y, lambda output, t: plain(output, t) * (weight if t is target else 1.0)
    )
    value = mix.loss(model(mixed), target, loss)
    value.backward()
    assert_same(grads_of(model), expected)
    twin = copy.deepcopy(model)
    both = weight * plain(twin(mixed), target) + LAM * plain(twin(x), one_hot(y))
    torch.testing.assert_close(value, both)
    unmixed = mixer_of(tiny_net(), clean_lam=0.0, objective=objective)
    mixed, target = unmixed(x, y)
    unmixed.loss(unmixed.model(mixed), target, loss).backward()
    assert not all(torch.allclose(a, b, rtol=1e-3) for a, b in zip(grads_of(unmixed.model), expected))


def test_smoothed_labels_are_smoothed_in_both_losses() -> None:
    x, y = batch()
    models = [tiny_net() for _ in range(2)]
    for model, smoothing, criterion in zip(models, (0.1, 0.0), (None, LabelSmoothingCrossEntropy(0.1))):
        mix = mixer_of(model, label_smoothing=smoothing)
        mixed, target = mix(x, y)
        mix.loss(model(mixed), target, criterion).backward()
    assert_same(*map(grads_of, models))


def test_norm_layers_see_the_mixed_and_the_unmixed_images_once_each() -> None:
    model, (x, y) = tiny_net(), batch()
    twin = copy.deepcopy(model)
    mix = mixer_of(model)
    mixed, target = mix(x, y)
    mix.loss(model(mixed), target)
    twin(mixed)
    twin(x)
    for one, other in zip(model.buffers(), twin.buffers()):
        torch.testing.assert_close(one, other)


def test_accumulation_and_loss_scaling_scale_both_losses() -> None:
    model = tiny_net()
    mix, expected = mixer_of(model), list[list[Tensor]]()
    for seed in range(3):
        x, y = batch(seed=seed)
        mixed, target = mix(x, y)
        expected.append(by_hand(model, mixed, target, x, y, F.cross_entropy))
        (mix.loss(model(mixed), target) * 128.0 / 3).backward()
    mean = [128.0 * sum(grads) / 3 for grads in zip(*expected)]
    assert_same(grads_of(model), mean, tolerance=1e-4)


def test_mixed_precision_runs_both_passes() -> None:
    model, (x, y) = tiny_net(), batch()
    mix = mixer_of(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, target = mix(x, y)
        loss = mix.loss(model(mixed), target)
        expected = by_hand(model, mixed, target, x, y, F.cross_entropy)
    loss.backward()
    assert_same(grads_of(model), expected, tolerance=2e-3)


@pytest.mark.parametrize("in_place", [True, False])
def test_compiled_models_have_the_same_gradients(in_place: bool) -> None:
    model = tiny_net()
    mix = mixer_of(model)
    if in_place:
        model.compile(backend="aot_eager")
    run = model if in_place else torch.compile(model, backend="aot_eager")
    for seed in range(2):
        x, y = batch(seed=seed)
        model.zero_grad()
        mixed, target = mix(x, y)
        expected = by_hand(_eager(model), mixed, target, x, y, F.cross_entropy)
        mix.loss(run(mixed), target).backward()
        assert_same(grads_of(model), expected)


def _eager(model: TinyNet) -> TinyNet:
    twin = TinyNet().train()
    twin.load_state_dict(model.state_dict())
    return twin


def test_checkpointed_models_have_the_same_gradients() -> None:
    x, y = batch()
    models = tiny_net(), tiny_net()
    models[1].checkpointing = True
    for model in models:
        mix = mixer_of(model)
        mixed, target = mix(x, y)
        mix.loss(model(mixed), target).backward()
    assert_same(*map(grads_of, models))


def test_averages_and_tasks_train_as_usual() -> None:
    model, (x, y) = tiny_net(), batch()
    mix = mixer_of(model)
    ema = ModelEmaV3(model, decay=0.5)
    task = MixTask(model, nn.CrossEntropyLoss(), mixer=mix, verbose=False)
    loss = task(x, y)["loss"]
    draw = last(mix)
    loss.backward()
    ema.update(model)
    other = tiny_net()
    again = mixer_of(other)
    mixed, target = again(x, y, draw=draw)  # a replay has the loss of the unmixed images, too
    again.loss(other(mixed), target).backward()
    assert_same(grads_of(model), grads_of(other))


def test_a_batch_that_is_not_mixed_has_one_loss() -> None:
    model, (x, y) = tiny_net(), batch()
    mix = mixer_of(model, prob=0.0)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    for switch in (False, True):
        mix.mixup_enabled = switch
        images, target = mix(x, y)
        torch.testing.assert_close(mix.loss(model(images), target), F.cross_entropy(model(x), y))
    assert len(calls) == 4


def test_only_the_turn_of_the_method_adds_it() -> None:
    model, (x, y) = tiny_net(), batch()
    mix = Mixer(model, OneOf([PuzzleMix(clean_lam=LAM), CutMix()]), num_classes=10)
    seen = set()
    for _ in range(12):
        mixed, target = mix(x, y)
        output = model(mixed)
        clean = isinstance(last(mix).method, PuzzleMix)
        expected = F.cross_entropy(output, target) + (LAM * F.cross_entropy(model(x), y) if clean else 0.0)
        torch.testing.assert_close(mix.loss(output, target), expected)
        seen.add(clean)
    assert seen == {True, False}


def test_a_loss_taken_without_it_is_refused() -> None:
    model, (x, y) = tiny_net(), batch()
    mix = mixer_of(model)
    mixed, target = mix(x, y)
    F.cross_entropy(model(mixed), target).backward()
    with pytest.raises(RuntimeError, match="the loss of the unmixed images"):
        mix(x, y)
    mixed, target = mix(x, y)
    mix.loss(model(mixed), target)
    mix(x, y)


def test_sync_batch_norm_is_refused() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(tiny_net())
    with pytest.raises(UserError, match=r"^clean_lam cannot be combined with SyncBatchNorm"):
        mixer_of(model)
    mixer_of(model, clean_lam=0.0)


def _train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = tiny_net()
    mix = mixer_of(model)
    parallel = DistributedDataParallel(model)
    found, expected = [], []
    for update in range(3):
        model.zero_grad()
        own = list[list[Tensor]]()
        for micro in range(2):
            x, y = batch(seed=4 * update + 2 * micro + rank)
            mixed, target = mix(x, y)
            own.append(by_hand(model, mixed, target, x, y, F.cross_entropy))
            if micro == 0:
                with parallel.no_sync():
                    mix.loss(parallel(mixed), target).backward()
            else:
                mix.loss(parallel(mixed), target).backward()
        found.append(grads_of(model))
        expected.append([sum(grads) for grads in zip(*own)])
    torch.save((found, expected), Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_average_both_losses() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_train, args=(folder,), nprocs=2, start_method="spawn")
        ranks = [torch.load(Path(folder) / f"rank{rank}.pt") for rank in range(2)]
    for update in range(3):
        mean = [(a + b) / 2 for a, b in zip(ranks[0][1][update], ranks[1][1][update])]
        for found, _ in ranks:
            assert_same(found[update], mean)
