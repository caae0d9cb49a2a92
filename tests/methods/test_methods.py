"""What holds for PatchUp holds for every method of the registry: one suite of properties, run for each of them."""

import copy
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from timm.loss import LabelSmoothingCrossEntropy
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.conftest import NUM_CLASSES
from tests.support.expectations import SWIN, MakeModel, expected_mix, hook_count, record
from timm_patchup import Draw, Mixer, MixTask, create_mixer, list_methods
from timm_patchup.methods import method_parameters
from timm_patchup.methods.puzzle_images import join_images
from timm_patchup.methods.puzzle_mix import PuzzleDraw

METHODS = list_methods()
MIXING = {"cutmix", "feature_cutmix", "hard_patchup", "manifold_mixup", "mixup", "puzzle_mix", "soft_patchup"}
ERASING = {"cutout", "dropblock"}
WITH_SITES = [name for name in METHODS if "sites" in method_parameters(name)]
HIDDEN = ["first", "second"]


def test_every_method_is_covered() -> None:
    assert set(METHODS) == MIXING | ERASING | {"none"}
    assert len(METHODS) == 10
    assert set(WITH_SITES) == {"dropblock", "feature_cutmix", "hard_patchup", "manifold_mixup", "soft_patchup"}


class TinyNet(nn.Module):
    """Two maps and a head, cheap enough to compile and to spawn; ``first`` and ``second`` are its hidden sites."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, NUM_CLASSES)
        self.checkpointing = False

    def body(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.first(x).relu())).relu()

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.body, x, use_reentrant=False) if self.checkpointing else self.body(x)
        return self.head(x.mean((2, 3)))


def tiny_net() -> TinyNet:
    torch.manual_seed(0)
    return TinyNet().train()


def mixer_of(name: str, model: nn.Module, **settings: Any) -> Mixer:
    """Make a mixer that alters every batch at the sites of a TinyNet, as far as the method has such settings."""
    usual: dict[str, Any] = {"prob": 1.0, "sites": ["input", *HIDDEN], "num_classes": NUM_CLASSES, "length": 5}
    usual |= {"block_size": 3} | settings
    return create_mixer(name, model, **{key: value for key, value in usual.items() if key in method_parameters(name)})


def batch(size: int = 6, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, 12, 10, generator=generator), torch.randint(10, (size,), generator=generator)


def last(mix: Mixer) -> Draw:
    assert mix.draw is not None
    return mix.draw


def step(mix: Mixer, x: Tensor, y: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Draw, run the model and return the images, the target and the output."""
    mixed, target = mix(x, y, **options)
    return mixed, target, mix.model(mixed)


def same(first: Draw, second: Draw) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b

    names = ("site", "partner", "lam", "changed", "kept", "scale")
    return all(equal(getattr(first, name), getattr(second, name)) for name in names)


def one_hot(labels: Tensor) -> Tensor:
    return F.one_hot(labels, NUM_CLASSES).float()


# What is altered


@pytest.mark.parametrize("name", METHODS)
def test_features_are_altered_where_and_as_the_draw_says(name: str) -> None:
    model = tiny_net()
    clean = copy.deepcopy(model)
    mix = mixer_of(name, model)
    seen: dict[str, list[Tensor]] = {site: [] for site in HIDDEN}
    for site in HIDDEN:
        record(model.get_submodule(site), seen[site])
        record(clean.get_submodule(site), seen[site])
    sites = set()
    for seed in range(12):
        x, y = batch(seed=seed)
        mixed, _, output = step(mix, x, y)
        draw = last(mix)
        if draw.site in HIDDEN:
            clean(x)
            after, before = seen[draw.site][-2:]
        else:
            after, before = mixed, x
        if draw.changed is None:
            assert torch.equal(after, before)
            assert torch.equal(output, clean(x))
        elif isinstance(draw, PuzzleDraw):  # in parts and in other places: see test_puzzle_images.py
            sources = {"own_source": draw.own_source, "partner_source": draw.partner_source}
            assert torch.equal(after, join_images(before, draw.partner, draw.mask, **sources))
        elif draw.scale is not None:
            rows = [
                [0.0 if hole else value * draw.scale.item() for value, hole in zip(sample, holes)]
                for sample, holes in zip(before.flatten(1).tolist(), draw.changed.expand_as(before).flatten(1).tolist())
            ]
            torch.testing.assert_close(after.flatten(1), torch.tensor(rows))
        else:
            assert draw.changed is not None
            whole = Draw(draw.site, draw.partner, draw.lam, draw.changed.expand(-1, *before.shape[1:]), draw.kept)
            torch.testing.assert_close(after.double(), expected_mix(before, whole, draw.lam), rtol=1e-5, atol=1e-6)
        sites.add(draw.site)
    input_only = name not in WITH_SITES
    assert sites == ({None} if name == "none" else {"input"} if input_only else {"input", *HIDDEN})


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", METHODS)
def test_targets_sum_to_one_and_follow_the_draw(name: str, smoothing: float) -> None:
    mix = mixer_of(name, tiny_net(), label_smoothing=smoothing)
    shared = 0
    for seed in range(8):
        x, y = batch(seed=seed)
        _, target, _ = step(mix, x, y)
        draw = last(mix)
        own = one_hot(y) * (1.0 - smoothing) + smoothing / NUM_CLASSES
        weight = (draw.kept + (1.0 - draw.kept) * draw.lam).reshape(-1, 1) if name in MIXING else torch.tensor(1.0)
        torch.testing.assert_close(target, weight * own + (1.0 - weight) * own[draw.partner])
        torch.testing.assert_close(target.sum(1), torch.ones(len(y)))
        assert target.dtype is torch.float32
        assert (target >= 0.0).all()
        assert name in MIXING or torch.equal(draw.partner, torch.arange(len(y)))
        shared += not torch.equal(target, own)
    assert (shared > 0) == (name in MIXING)


@pytest.mark.parametrize("name", METHODS)
def test_loss_is_the_plain_one_on_the_target_and_twice_that_for_patchup(name: str) -> None:
    mix = mixer_of(name, tiny_net())
    x, y = batch()
    _, target, output = step(mix, x, y)
    times = 2.0 if "patchup" in name else 1.0
    torch.testing.assert_close(mix.loss(output, target), times * F.cross_entropy(output, target))


@pytest.mark.parametrize("name", sorted(ERASING))
def test_an_erased_batch_has_exactly_timms_loss_in_a_task(name: str) -> None:
    model, criterion = tiny_net(), LabelSmoothingCrossEntropy(0.1)
    task = MixTask(model, criterion, mixer=mixer_of(name, model), verbose=False)
    x, y = batch()
    asked: list[Tensor] = []
    criterion.register_forward_pre_hook(lambda module, args: asked.append(args[1]))
    result = task(x, y)
    assert last(task.mixer).changed is not None
    assert len(asked) == 1
    assert asked[0] is y, "the labels as they came"
    assert torch.equal(result["loss"], criterion(result["output"], y))


@pytest.mark.parametrize("name", sorted(ERASING))
def test_an_erasing_draw_made_by_hand_has_the_own_targets_whatever_its_partner(name: str) -> None:
    mix = mixer_of(name, tiny_net())
    x, y = batch()
    half = torch.arange(12).reshape(1, 1, 12, 1).expand(1, 1, 12, 10) < 6
    draw = Draw("input", torch.arange(5, -1, -1), 0.0, half, torch.tensor(0.5), torch.tensor(2.0))
    erased, target = mix(x, y, draw=draw)
    assert torch.equal(target, one_hot(y))
    assert torch.equal(erased, torch.cat([torch.zeros(6, 3, 6, 10), 2.0 * x[:, :, 6:]], dim=2))


@pytest.mark.parametrize("name", WITH_SITES)
def test_maps_with_channels_last_in_their_shape_are_altered_too(name: str, make_model: MakeModel) -> None:
    model = make_model("swin_tiny_patch4_window7_224", **SWIN)
    mix = mixer_of(name, model, sites=["stage1"])
    clean = copy.deepcopy(model)
    x, y = torch.randn(2, 3, 64, 64), torch.tensor([1, 2])
    mix(x, y)
    swap = Draw("stage1", torch.tensor([1, 0]), last(mix).lam, last(mix).changed, last(mix).kept, last(mix).scale)
    mixed, target = mix_again(mix, x, y, swap)
    output = model(mixed)
    mix.loss(output, target).backward()
    assert last(mix).changed is not None
    assert last(mix).changed.shape[-1] in (1, 8)  # type: ignore[union-attr]
    assert not torch.equal(output, clean(x))


def mix_again(mix: Mixer, x: Tensor, y: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    mix._armed.disarm()
    return mix(x, y, draw=draw)


# What stays as it is


@pytest.mark.parametrize("name", METHODS)
def test_eval_is_untouched(name: str) -> None:
    model = tiny_net()
    clean = copy.deepcopy(model).eval()
    mix = mixer_of(name, model)
    x, y = batch()
    for seed in range(6):
        mixed, _ = mix(*batch(seed=seed))
        model.eval()
        assert torch.equal(model(x), clean(x)), "armed, but in eval mode"
        model.train()
        with torch.no_grad():
            model.norm.eval()
            model(mixed)
    model.eval()
    count = mix.state_dict()["count"]
    same_x, target = mix(x, y)
    assert same_x is x
    assert last(mix).site is None
    assert torch.equal(target, one_hot(y))
    assert torch.equal(model(x), clean(x))
    assert mix.state_dict()["count"] == count


@pytest.mark.parametrize("name", METHODS)
def test_mixup_enabled_and_paused(name: str) -> None:
    model = tiny_net()
    model.norm.eval()
    clean = copy.deepcopy(model)
    mix = mixer_of(name, model)
    x, y = batch()
    altered = 0
    for _ in range(6):
        mixed, target = mix(x, y)
        with mix.paused():
            assert torch.equal(model(x), clean(x))
            state = mix.state_dict()
        altered += not torch.equal(model(mixed), clean(x))
        for off in ("paused", "mixup_enabled"):
            mix.mixup_enabled = off == "paused"
            with mix.paused() if off == "paused" else torch.enable_grad():
                plain, target, output = step(mix, x, y)
            assert plain is x
            assert torch.equal(target, one_hot(y))
            assert torch.equal(output, clean(x))
            torch.testing.assert_close(mix.loss(output, target), F.cross_entropy(output, y))
        mix.mixup_enabled = True
        assert mix.state_dict() == state
    # Puzzle Mix may show all of an image.
    assert altered in ((0,) if name == "none" else range(1, 7) if name == "puzzle_mix" else (6,))


@pytest.mark.parametrize("name", METHODS)
def test_detach_leaves_nothing_behind(name: str) -> None:
    model = tiny_net()
    model.norm.eval()
    clean = copy.deepcopy(model)
    names = {at: sorted(vars(module)) for at, module in model.named_modules()}
    mix = mixer_of(name, model)
    assert hook_count(model) == (len(HIDDEN) + 1 if name in WITH_SITES else 0)
    x, y = batch()
    mix(x, y)  # armed when it is detached
    mix.detach()
    assert hook_count(model) == 0
    assert {at: sorted(vars(module)) for at, module in model.named_modules()} == names
    assert torch.equal(model(x), clean(x))
    with pytest.raises(RuntimeError, match="detached"):
        mix(x, y)
    mixer_of(name, model)


@pytest.mark.parametrize("name", METHODS)
def test_global_random_state_and_inputs_are_untouched(name: str) -> None:
    mix = mixer_of(name, tiny_net())
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    for seed in range(4):
        x, y = batch(seed=seed)
        x_before, y_before = x.clone(), y.clone()
        _, target, output = step(mix, x, y)
        mix.loss(output, target).backward()
        assert torch.equal(x, x_before)
        assert torch.equal(y, y_before)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]


@pytest.mark.parametrize("name", METHODS)
def test_copies_of_the_model_are_inert(name: str) -> None:
    model = tiny_net()
    model.norm.eval()
    clean = copy.deepcopy(model)
    mix = mixer_of(name, model)
    for _ in range(4):
        mixed, target, output = step(mix, *batch())
        mix.loss(output, target).backward()
        ema = ModelEmaV3(model).module.train()
        ema.norm.eval()
        mixed, _ = mix(*batch())
        assert torch.equal(ema(mixed), clean(mixed))
        model(mixed)


# Replay and resume


@pytest.mark.parametrize("name", METHODS)
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


@pytest.mark.parametrize("name", METHODS)
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
    assert name == "none" or not same(expected[0], expected[1])
    fresh = mixer_of(name, tiny_net(), **some)
    assert name == "none" or not all(same(one, other) for one, other in zip(expected, draws_of(fresh, 8)))


@pytest.mark.parametrize("name", METHODS)
def test_settings_make_the_same_mixer_again(name: str) -> None:
    settings = mixer_of(name, tiny_net(), seed=3).settings()
    assert create_mixer(name, tiny_net(), **settings).settings() == settings
    assert set(settings) == set(method_parameters(name)) - {"num_classes"} - ({"seed"} if name == "none" else set())


# What a training loop relies on


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("name", METHODS)
def test_small_and_odd_batches_train(name: str, size: int) -> None:
    model = tiny_net()
    mix = mixer_of(name, model)
    for seed in range(6):
        model.zero_grad()
        _, target, output = step(mix, *batch(size, seed))
        mix.loss(output, target).backward()
        assert target.shape == (size, NUM_CLASSES)
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "checkpointing"), [(name, False) for name in METHODS] + [(name, True) for name in WITH_SITES]
)
def test_compiled_step_has_one_graph_a_site_and_eager_gradients(name: str, checkpointing: bool) -> None:
    torch._dynamo.reset()
    model = tiny_net()
    twin = copy.deepcopy(model)
    twin.checkpointing = checkpointing
    mix, twin_mix = mixer_of(name, model, seed=3), mixer_of(name, twin, seed=3)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(twin, backend=counter, fullgraph=True)
    seen: set[str | None] = set()
    for seed in range(12):
        x, y = batch(seed=seed)
        for network, mixer, run in ((model, mix, model), (twin, twin_mix, compiled)):
            network.zero_grad()
            mixed, target = mixer(x, y)
            mixer.loss(run(mixed), target).backward()
        seen.add(last(mix).site if last(mix).site in HIDDEN else None)
        assert counter.frame_count == len(seen)
        for (at, p), q in zip(model.named_parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5, msg=lambda text, at=at: f"{at}: {text}")
    assert seen == ({None, *HIDDEN} if name in WITH_SITES else {None})


@pytest.mark.parametrize("name", METHODS)
def test_gradient_checkpointing_sees_the_same_draw(name: str) -> None:
    model = tiny_net()
    model.norm.momentum = 0.0
    mix = mixer_of(name, model)
    for seed in range(6):
        x, y = batch(seed=seed)
        found = []
        draw = None
        for model.checkpointing in (False, True):
            model.zero_grad()
            _, target, output = step(mix, x, y, draw=draw)
            draw = last(mix)
            mix.loss(output, target).backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for plain, recomputed in zip(*found, strict=True):
            torch.testing.assert_close(plain, recomputed)


@pytest.mark.parametrize("name", METHODS)
def test_bfloat16_is_kept(name: str) -> None:
    model = tiny_net()
    mix = mixer_of(name, model)
    seen: list[Tensor] = []
    record(model.first, seen)
    record(model.second, seen)
    for seed in range(6):
        x, y = batch(seed=seed)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed, target, output = step(mix, x, y)
            loss = mix.loss(output, target)
        loss.backward()
        assert mixed.dtype is torch.float32
        assert all(features.dtype is torch.bfloat16 for features in seen[-2:])
        assert target.dtype is loss.dtype is torch.float32
        assert torch.isfinite(loss)
    assert mix(x.bfloat16(), y)[0].dtype is torch.bfloat16


@pytest.mark.parametrize("name", METHODS)
def test_channels_last_is_kept_and_changes_nothing(name: str) -> None:
    model = tiny_net()
    twin = copy.deepcopy(model).to(memory_format=torch.channels_last)
    mix, twin_mix = mixer_of(name, model), mixer_of(name, twin)
    seen: list[bool] = []
    for module in (twin.first, twin.second):
        module.register_forward_hook(
            lambda module, args, output: seen.append(output.is_contiguous(memory_format=torch.channels_last))
        )
    for seed in range(6):
        x, y = batch(seed=seed)
        mixed, target, output = step(mix, x, y)
        mix.loss(output, target).backward()
        other, target, output = step(twin_mix, x.contiguous(memory_format=torch.channels_last), y)
        twin_mix.loss(output, target).backward()
        assert other.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(other, mixed)
    assert seen
    assert all(seen)
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("site", ["input", "0"])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "puzzle_mix"])  # which asks for a classifier
def test_gradient_of_the_operation_in_float64(name: str, site: str) -> None:
    if site != "input" and name not in WITH_SITES:
        site = "input"
    model = nn.Sequential(nn.Identity(), nn.Identity()).train()
    mix = mixer_of(name, model, sites=[site], length=2, block_size=2)
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    y = torch.tensor([1, 2, 3])
    for _ in range(3):
        step(mix, x, y)
        draw = last(mix)
        assert draw.site == (None if name == "none" else site)

        def altered(x: Tensor, draw: Draw = draw) -> Tensor:
            return step(mix, x, y, draw=draw)[2]

        assert torch.autograd.gradcheck(altered, (x.clone().requires_grad_(),))


@pytest.mark.parametrize("name", WITH_SITES)
def test_backward_keeps_a_mask_and_no_activation(name: str) -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity()).train()
    mix = mixer_of(name, model, sites=["0"])
    x = torch.randn(32, 16, 12, 12, requires_grad=True)
    mixed, _ = mix(x, torch.zeros(32, dtype=torch.long))
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(mixed)
    assert 0 < sum(kept.values()) < 0.08 * x.untyped_storage().nbytes()


RANKS = 2


def _train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    records: dict[str, Any] = {}
    for name in METHODS:
        model = tiny_net()
        mix = mixer_of(name, model)
        parallel = DistributedDataParallel(model)
        draws, grads = [], []
        for seed in range(4):
            x, y = batch(seed=2 * seed + rank)
            model.zero_grad()
            mixed, target = mix(x, y)
            mix.loss(parallel(mixed), target).backward()
            draws.append(last(mix))
            grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        records[name] = [(d.site, d.partner, d.lam, d.changed, d.kept, d.scale) for d in draws], grads, mix.state_dict()
    torch.save(records, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_agree_on_gradients_and_draw_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_train, args=(folder,), nprocs=RANKS, start_method="spawn")
        ranks = [torch.load(Path(folder) / f"rank{rank}.pt") for rank in range(RANKS)]
    for name in METHODS:
        draws = [[Draw(*values) for values in rank[name][0]] for rank in ranks]
        for first, second in zip(ranks[0][name][1], ranks[1][name][1], strict=True):
            assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True)), name
        assert name == "none" or not same(draws[0][0], draws[1][0]), name
        assert ranks[0][name][2] == ranks[1][name][2], "one state for all ranks"
        for rank in range(RANKS):  # what a rank drew follows from seed, rank and step alone
            monkeypatch.setenv("RANK", str(rank))
            mix = mixer_of(name, tiny_net())
            step(mix, *batch())
            assert same(last(mix), draws[rank][0]), name


# Combinations and mistakes


def test_a_method_at_the_input_can_go_before_one_inside() -> None:
    model = tiny_net()
    first, second = mixer_of("cutout", model), mixer_of("manifold_mixup", model, sites=["first"])
    x, y = batch()
    mixed, target = second(*first(x, y))
    second.loss(model(mixed), target).backward()
    assert (mixed == 0.0).any()
    assert torch.equal(mixed, x * (last(first).changed.logical_not()))  # type: ignore[union-attr]
    lam, partner = last(second).lam, last(second).partner
    torch.testing.assert_close(target, lam * one_hot(y) + (1.0 - lam) * one_hot(y)[partner])


@pytest.mark.parametrize("name", WITH_SITES)
def test_two_methods_inside_one_model_are_refused(name: str) -> None:
    model = tiny_net()
    mixer_of("hard_patchup", model)
    with pytest.raises(ValueError, match=r"^the model has a mixer already: call detach\(\) on that one first$"):
        mixer_of(name, model)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mixup", {"alpha": 0.0}, r"alpha must lie in \(0, inf\), got 0.0"),
        ("manifold_mixup", {"alpha": "2"}, r"alpha must be a number in \(0, inf\), got '2'"),
        ("cutmix", {"alpha": -1.0}, r"alpha must lie in \(0, inf\), got -1.0"),
        ("feature_cutmix", {"alpha": 0}, r"alpha must lie in \(0, inf\), got 0"),
        ("cutout", {"length": 0}, "length must be at least 1, got 0"),
        ("cutout", {"length": 7.5}, "length must be a whole number of at least 1, got 7.5"),
        ("dropblock", {"drop_prob": 1.0}, r"drop_prob must lie in \[0, 1\), got 1.0"),
        ("dropblock", {"block_size": [3, 5]}, r"block_size must be a whole number of at least 1, got \[3, 5\]"),
        ("cutout", {"sites": ["stem"]}, "unknown setting of cutout 'sites': choose from "),
        ("mixup", {"gamma": 0.5}, "unknown setting of mixup 'gamma': choose from "),
    ],
)
def test_wrong_settings_end_in_one_line(name: str, settings: dict[str, Any], message: str) -> None:
    model = tiny_net()
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        create_mixer(name, model, **settings)
    assert hook_count(model) == 0


@pytest.mark.parametrize("scale", [1.0, torch.ones(2), torch.tensor(float("nan")), torch.tensor(-1.0)])
def test_a_draw_with_a_wrong_scale_is_refused(scale: Any) -> None:
    mix = mixer_of("cutout", tiny_net())
    x, y = batch()
    draw = Draw("input", torch.arange(6), 0.0, torch.ones(1, 1, 12, 10) > 0, torch.tensor(0.0), scale)
    with pytest.raises((TypeError, ValueError), match=r"^draw\.scale must "):
        mix(x, y, draw=draw)
