"""The Lightning callback agrees with a plain loop bit for bit, resumes exactly and refuses what would not be mixed."""

import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from timm_patchup import PatchUp
from timm_patchup.integrations.lightning import MixCallback

from .small import LR, same_weights, samples, small_mixer, small_model, train_plainly, weights_of

COLLATE: dict[str, tuple[tuple[Any, Any], Callable[[list], Any]]] = {
    "list": ((0, 1), default_collate),
    "tuple": ((0, 1), lambda batch: tuple(default_collate(batch))),
    "dict": (("image", "label"), lambda batch: dict(zip(("image", "label"), default_collate(batch)))),
    "with more": ((1, 0), lambda batch: [default_collate(batch)[1], default_collate(batch)[0], "more"]),
}


class Module(LightningModule):
    """A user's module: ``self.mix.loss`` in ``training_step``; keeps what it was given."""

    def __init__(self, keys: tuple[Any, Any] = (0, 1), seed: int = 3) -> None:
        super().__init__()
        self.model = small_model()
        self.mix = small_mixer(self.model, seed=seed)
        self.keys = keys
        self.given: list[tuple[Tensor, Tensor]] = []
        self.ended: list[Any] = []
        self.kinds: set[type] = set()
        self.validated: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, target = (batch[key] for key in self.keys)
        self.given.append((x, target))
        self.kinds.add(type(batch))
        return self.mix.loss(self.model(x), target)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.ended.append(batch[self.keys[1]])
        self.kinds.add(type(batch))

    def validation_step(self, batch: Any) -> None:
        self.validated.append(batch[self.keys[1]])
        self.model(batch[self.keys[0]])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=LR)


def loader(collate: Callable[[list], Any] | None = None) -> DataLoader:
    return DataLoader(samples(), batch_size=4, collate_fn=collate)


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    warnings.filterwarnings("ignore", module="lightning")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return Trainer(default_root_dir=folder, callbacks=list(callbacks), **{"max_epochs": 2, **quiet, **options})


def expected(epochs: int = 2, **options: Any) -> dict[str, Tensor]:
    model = small_model()
    mix = small_mixer(model)
    for _ in range(epochs):
        train_plainly(model, mix, loader(), **options)
    return weights_of(model)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kind", COLLATE)
def test_training_matches_a_plain_loop(kind: str, bf16: bool, accumulate: int, tmp_path: Path) -> None:
    keys, collate = COLLATE[kind]
    module = Module(keys)
    options = {"accumulate_grad_batches": accumulate, "precision": "bf16-mixed" if bf16 else "32-true"}
    trainer(tmp_path, MixCallback(module.mix, keys), **options).fit(module, loader(collate), loader(collate))
    assert same_weights(weights_of(module.model), expected(accumulate=accumulate, bf16=bf16))
    assert module.mix.state_dict()["count"] == len(module.given) == 12, "one draw per micro-batch"
    assert all(target.shape == (4, 10) for _, target in module.given)
    assert len(module.kinds) == 1, "a batch keeps its type"
    assert {y.ndim for y in module.ended} == {1}, "other hooks are given the batch as it came"
    assert {y.ndim for y in module.validated} == {1}, "validation is left alone"


def test_resume_is_exact(tmp_path: Path) -> None:
    module = Module()
    saved = ModelCheckpoint(tmp_path, filename="half")
    trainer(tmp_path, MixCallback(module.mix), saved).fit(module, loader())
    again = Module(seed=9)
    callback = MixCallback(again.mix)
    trainer(tmp_path, callback, max_epochs=4).fit(again, loader(), ckpt_path=tmp_path / "half.ckpt")
    assert again.mix.state_dict() == {"seed": 3, "count": 24}
    assert same_weights(weights_of(again.model), expected(epochs=4))


class LoaderWithPlace(DataLoader):
    """Keeps its place in the epoch, which Lightning then stores in its checkpoints, as torchdata's loader does."""

    skip = given = 0

    def __iter__(self) -> Iterator[Any]:
        self.given, self.skip = self.skip, 0
        for batch in islice(super().__iter__(), self.given, None):
            self.given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skip = state["given"]


@pytest.mark.parametrize("keeps_place", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_resume_in_the_middle_of_an_epoch(accumulate: int, keeps_place: bool, tmp_path: Path) -> None:
    """Exact if the loader keeps its place. If not, Lightning gives the rest of the epoch its first batches again."""

    def data() -> DataLoader:
        return (LoaderWithPlace if keeps_place else DataLoader)(samples(), batch_size=4)

    module, again = Module(), Module(seed=9)
    options = {"accumulate_grad_batches": accumulate}
    saved = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4 // accumulate, save_top_k=-1)
    trainer(tmp_path, MixCallback(module.mix), saved, **options).fit(module, data())
    middle = tmp_path / f"step={4 // accumulate}.ckpt"  # four of six batches
    trainer(tmp_path, MixCallback(again.mix), **options).fit(again, data(), ckpt_path=middle)
    assert len(again.given) == 8
    assert again.mix.state_dict() == module.mix.state_dict() == {"seed": 3, "count": 12}
    batches, twin = list(loader()), small_model()
    seen = [*batches, *batches] if keeps_place else [*batches[:4], *batches[:2], *batches]
    train_plainly(twin, small_mixer(twin), seen, accumulate=accumulate)
    assert same_weights(weights_of(again.model), weights_of(twin))
    assert same_weights(weights_of(again.model), weights_of(module.model)) == keeps_place


def test_a_step_that_runs_twice_sees_one_draw(tmp_path: Path) -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            closure()
            return super().step(closure)

    class SharpnessAware(Module):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return Twice(self.parameters(), lr=LR)

    module = SharpnessAware()
    trainer(tmp_path, MixCallback(module.mix), max_epochs=1).fit(module, loader())
    assert module.mix.state_dict()["count"] == 6
    assert len(module.given) == 12
    for (first, _), (second, _) in zip(module.given[::2], module.given[1::2]):
        assert first is second


def test_the_module_is_left_as_it_was(tmp_path: Path) -> None:
    module, failing = Module(), Module()
    trainer(tmp_path, MixCallback(module.mix)).fit(module, loader())
    assert "training_step" not in vars(module)

    def fail(*args: Any) -> None:
        raise KeyError("the user's own error")

    failing.on_before_zero_grad = fail  # type: ignore[method-assign]
    with pytest.raises(KeyError, match="the user's own error"):
        trainer(tmp_path, MixCallback(failing.mix)).fit(failing, loader())
    assert "training_step" not in vars(failing)
    own_step = failing.training_step
    failing.training_step = own_step  # type: ignore[method-assign]  # as torch.compile does
    del failing.on_before_zero_grad
    trainer(tmp_path, MixCallback(failing.mix), max_epochs=1).fit(failing, loader())
    assert vars(failing)["training_step"] is own_step
    assert len(failing.given) == 1 + 6
    assert failing.mix.state_dict()["count"] == 1 + 6, "fitted again, a batch is mixed once"


def test_what_would_not_be_mixed_is_refused(tmp_path: Path) -> None:
    module = Module()
    with pytest.raises(ValueError, match="made for another model"):
        trainer(tmp_path, MixCallback(small_mixer(small_model()))).fit(module, loader())
    trainer(tmp_path, MixCallback(small_mixer(small_model()))).validate(module, loader(), verbose=False)
    with pytest.raises(ValueError, match=r"keys=\('x', 'y'\) are not in a batch, which is a list"):
        trainer(tmp_path, MixCallback(module.mix, ("x", "y"))).fit(module, loader())
    with pytest.raises(ValueError, match=r"keys=\(0, 2\) are not in a batch"):
        trainer(tmp_path, MixCallback(module.mix, (0, 2))).fit(module, loader())
    module.model.eval()  # Lightning keeps the mode that a model has
    with pytest.raises(ValueError, match=r"eval mode and would not be mixed: call model\.train\(\)"):
        trainer(tmp_path, MixCallback(module.mix)).fit(module, loader())


def test_a_step_that_runs_another_model_raises(tmp_path: Path) -> None:
    module = Module()
    module.mix.detach()
    module.mix = PatchUp(module.model, prob=1.0, sites=["stage1"], block_size=3)
    module.other = small_model()
    module.training_step = lambda batch: nn.functional.cross_entropy(module.other(batch[0]), batch[1])  # type: ignore
    with pytest.raises(RuntimeError, match="was never applied"):
        trainer(tmp_path, MixCallback(module.mix)).fit(module, loader())
