"""The fastai callback agrees with a plain loop bit for bit and refuses what would not be mixed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

pytest.importorskip("fastai", reason="fastai is in the extra [test], with packages that nothing else here needs")

from fastai.callback.training import GradientAccumulation
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.optimizer import OptimWrapper

from timm_patchup import PatchUp
from timm_patchup.integrations.fastai import MixLearnerCallback

from .small import LR, same_weights, samples, small_mixer, small_model, train_plainly, weights_of


def data() -> DataLoaders:
    images, labels = (torch.stack(list(map(torch.as_tensor, column))) for column in zip(*samples()))
    dataset = TensorDataset(images, labels)
    loaders = [DataLoader(dataset, bs=4, shuffle=False, num_workers=0) for _ in range(2)]
    return DataLoaders(*loaders, device=torch.device("cpu"))


def learner(model: nn.Module, *callbacks: Any) -> Learner:
    def sgd(params: Any, lr: float, **kwargs: Any) -> OptimWrapper:
        return OptimWrapper(params, torch.optim.SGD, lr=lr)

    made = Learner(data(), model, loss_func=CrossEntropyLossFlat(), opt_func=sgd, lr=LR, cbs=list(callbacks))
    made.logger = lambda *args, **kwargs: None
    return made


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_matches_a_plain_loop(accumulate: int) -> None:
    model, twin = small_model(), small_model()
    mix = small_mixer(model)
    more = [GradientAccumulation(4 * accumulate)] if accumulate > 1 else []
    with learner(model, MixLearnerCallback(mix), *more).no_bar() as made:
        made.fit(2)
    twin_mix = small_mixer(twin)
    for _ in range(2):
        batches = [(x, y) for x, y in data().train]
        train_plainly(twin, twin_mix, batches, accumulate=accumulate)
    if accumulate == 1:
        assert same_weights(weights_of(model), weights_of(twin))
    else:  # fastai multiplies by the size of a batch and divides by the size of the update: other rounding
        for name, value in weights_of(model).items():
            torch.testing.assert_close(value, weights_of(twin)[name], rtol=1e-4, atol=1e-5)
    assert mix.state_dict()["count"] == 12, "one draw per micro-batch, none in validation"


def test_resume_with_the_state_beside_fastais_file_is_exact(tmp_path: Path) -> None:
    whole, first, second = small_model(), small_model(), small_model()
    with learner(whole, MixLearnerCallback(small_mixer(whole))).no_bar() as made:
        made.fit(2)
    mix, again = small_mixer(first), small_mixer(second, seed=9)
    with learner(first, MixLearnerCallback(mix)).no_bar() as made:
        made.fit(1)
        made.save(tmp_path / "half")
    with learner(second, MixLearnerCallback(again)).no_bar() as made:
        made.create_opt()
        made.load(tmp_path / "half")
        again.load_state_dict(mix.state_dict())
        made.fit(1)
    assert same_weights(weights_of(second), weights_of(whole))


def test_a_criterion_of_the_user_sees_soft_targets() -> None:
    seen: list[Tensor] = []

    def criterion(output: Tensor, target: Tensor) -> Tensor:
        seen.append(target)
        return nn.functional.binary_cross_entropy_with_logits(output, target)

    model = small_model()
    mix = PatchUp(model, prob=1.0, sites=["input"], objective="l2")
    with learner(model, MixLearnerCallback(mix, criterion)).no_bar() as made:
        made.fit(1)
    assert len(seen) == 6
    assert all(target.shape == (4, 10) for target in seen)


def test_what_would_not_be_mixed_is_refused() -> None:
    model = small_model()
    with pytest.raises(ValueError, match="a model that is not in the Learner's"):
        learner(model, MixLearnerCallback(small_mixer(small_model()))).fit(1)
    made = learner(model, MixLearnerCallback(small_mixer(model)))
    made.dls[0].dataset = TensorDataset(*made.dls[0].dataset.tensors, torch.zeros(24))
    with pytest.raises(ValueError, match="a batch must be one tensor of images and one of targets"):
        made.fit(1)
    model = small_model()
    part = nn.Sequential(model)
    model.train = lambda mode=True: model  # type: ignore[method-assign,assignment]
    model.training = False
    with pytest.raises(ValueError, match="eval mode and would not be mixed"):
        learner(part, MixLearnerCallback(small_mixer(model))).fit(1)
