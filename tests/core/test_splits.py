"""timm's augmentation splits: all splits of a sample are mixed alike, and the JSD loss compares them."""

import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from timm.data import AugMixDataset, create_loader
from timm.layers import SplitBatchNorm2d, convert_splitbn_model
from timm.loss import JsdCrossEntropy
from torch import Tensor, nn

from tests.conftest import NUM_CLASSES
from tests.methods.every_method import CASES, batch, last, mixer_of, one_hot, tiny_net
from timm_patchup import MixTask, PatchUp, register, unregister

SPLITS = 3


def splits(size: int = 5) -> tuple[Tensor, Tensor]:
    """Images that differ in every split, and the labels of their samples."""
    x = torch.cat([batch(size, seed=split)[0] for split in range(SPLITS)])
    return x, batch(size)[1].repeat(SPLITS)


@pytest.mark.parametrize("mask", ["batch", "sample"])
@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("name", CASES)
def test_every_split_is_mixed_as_the_clean_one_alone(name: str, size: int, mask: str) -> None:
    model, twin = tiny_net(), tiny_net()
    for net in (model, twin):
        net.norm.eval()  # otherwise samples of one batch depend on each other
    settings = {"mask": "channel" if name == "dropblock" and mask == "batch" else mask}  # it has no mask for the batch
    mix = mixer_of(name, model, **settings, num_splits=SPLITS)
    alone = mixer_of(name, twin, **settings)
    x, y = splits(size)
    for _ in range(6):
        mixed, target = mix(x, y)
        output = model(mixed)
        draw = None
        for part, labels, *seen in zip(*(tensor.chunk(SPLITS) for tensor in (x, y, mixed, target, output))):
            own, own_target = alone(part, labels, draw=draw)
            draw = last(alone)
            torch.testing.assert_close(seen, [own, own_target, twin(own)])
        assert mix.state_dict() == alone.state_dict(), "one draw for all splits"
        assert last(mix).site == last(alone).site


@pytest.mark.parametrize("name", CASES)
def test_a_draw_for_splits_can_be_replayed(name: str) -> None:
    model = tiny_net()
    model.norm.eval()
    mix = mixer_of(name, model, num_splits=SPLITS)
    x, y = splits()
    for _ in range(4):
        mixed, target = mix(x, y)
        output, draw = model(mixed), last(mix)
        again, target_again = mix(x, y, draw=draw)
        assert torch.equal(again, mixed)
        assert torch.equal(target_again, target)
        assert torch.equal(model(again), output)


def jsd_by_hand(output: Tensor, target: Tensor, alpha: float = 12.0) -> Tensor:
    """Cross-entropy of the clean split, and alpha times the mean divergence of each split from their mean."""
    parts = output.softmax(1).chunk(SPLITS)
    mean = sum(parts) / SPLITS
    divergence = sum((part * (part.log() - mean.log())).sum(1).mean() for part in parts) / SPLITS
    own = target.chunk(SPLITS)[0]
    return -(own * output.chunk(SPLITS)[0].log_softmax(1)).sum(1).mean() + alpha * divergence


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("objective", "factor"), [("paper", 2.0), ("l1", 1.0), ("l2", 1.0)])
@pytest.mark.parametrize("mask", ["batch", "sample"])
def test_jsd_of_a_mixed_batch(objective: str, factor: float, mask: str, smoothing: float) -> None:
    model = tiny_net()
    mix = mixer_of("soft_patchup", model, objective=objective, mask=mask, num_splits=SPLITS)
    x, y = splits()
    mixed, _ = mix(x, y)
    output, draw = model(mixed), last(mix)
    own = one_hot(y) * (1 - smoothing) + smoothing / NUM_CLASSES
    share = (draw.kept + (1 - draw.kept) * draw.lam).reshape(-1, 1)
    target = share * own + (1 - share) * own[draw.partner]
    loss = mix.loss(output, mix._batch.target, JsdCrossEntropy(SPLITS, smoothing=smoothing))
    torch.testing.assert_close(loss, factor * jsd_by_hand(output, target))
    loss.backward()


def test_jsd_with_smoothing_in_the_mixer_matches_the_criterion() -> None:
    losses = []
    for in_mixer, in_criterion in ((0.1, 0.0), (0.0, 0.1)):
        model = tiny_net()
        mix = mixer_of("mixup", model, label_smoothing=in_mixer, num_splits=SPLITS)
        losses.append(mix.run(model, *splits(), JsdCrossEntropy(SPLITS, smoothing=in_criterion))[0])
    torch.testing.assert_close(*losses)
    with pytest.raises(ValueError, match=r"label smoothing is set twice, in the mixer \(0.1\) and in the criterion"):
        mixer_of("mixup", tiny_net(), label_smoothing=0.1, num_splits=SPLITS).loss(
            torch.randn(6, 10), torch.rand(6, 10), JsdCrossEntropy(SPLITS, smoothing=0.1)
        )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_jsd_of_a_batch_left_alone_is_timms_to_the_last_bit(smoothing: float) -> None:
    model, criterion = tiny_net(), JsdCrossEntropy(SPLITS, smoothing=smoothing)
    x, y = splits()
    loss, output = mixer_of("hard_patchup", model, prob=0.0, num_splits=SPLITS).run(model, x, y, criterion)
    assert torch.equal(loss, criterion(output, y))


def test_equal_splits_stay_equal() -> None:
    """Whatever is drawn, the consistency term compares like with like."""
    model = tiny_net()
    model.norm.eval()
    x, y = batch()
    for name in CASES:
        mix = mixer_of(name, model, num_splits=SPLITS)
        for _ in range(4):
            mixed, _ = mix(x.repeat(SPLITS, 1, 1, 1), y.repeat(SPLITS))
            first, *others = model(mixed).chunk(SPLITS)
            for other in others:
                torch.testing.assert_close(other, first)
        mix.detach()


@pytest.fixture(scope="module")
def loaded() -> tuple[Tensor, Tensor]:
    """A batch of timm's own loader with AugMix, on the CPU."""

    class Samples(torch.utils.data.Dataset):
        transform = None

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            image = Image.effect_noise((40, 40), 50).convert("RGB")
            return self.transform(image), index

    dataset = AugMixDataset(Samples(), num_splits=SPLITS)
    options = {"input_size": (3, 32, 32), "batch_size": 4, "is_training": True, "num_workers": 0}
    loader = create_loader(
        dataset,
        **options,
        auto_augment="augmix-m3-w3",
        num_aug_splits=SPLITS,
        device=torch.device("cpu"),
        persistent_workers=False,
    )
    return next(iter(loader))


@pytest.mark.parametrize("split_bn", [False, True])
def test_batches_of_timms_loader_train(split_bn: bool, loaded: tuple[Tensor, Tensor]) -> None:
    model = timm.create_model("test_resnet", num_classes=NUM_CLASSES)
    model = convert_splitbn_model(model, SPLITS) if split_bn else model
    assert any(isinstance(module, SplitBatchNorm2d) for module in model.modules()) == split_bn
    mix = PatchUp(model, prob=1.0, block_size=3, num_splits=SPLITS)
    task = MixTask(model, JsdCrossEntropy(SPLITS), mixer=mix, verbose=False)
    assert len(loaded[0]) == 4 * SPLITS
    sites = set()
    for _ in range(8):
        model.zero_grad()
        task(*loaded)["loss"].backward()
        sites.add(last(mix).site)
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert len(sites) > 1


def test_register_takes_the_number_of_splits() -> None:
    register("manifold_mixup", num_splits=SPLITS)
    try:
        task = timm.task.ClassificationTask(timm.create_model("test_resnet"), JsdCrossEntropy(SPLITS), verbose=False)
        assert task.mixer.num_splits == SPLITS
    finally:
        unregister()


def test_what_is_not_made_of_splits_is_refused(model: nn.Module, images: Tensor) -> None:
    mix = PatchUp(model, num_splits=2)
    with pytest.raises(ValueError, match=r"^a batch of 3 cannot be divided into num_splits = 2 splits$"):
        mix(images[:3], torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match=r"^the targets of num_splits = 2 splits differ: a batch holds all samples"):
        mix(images, torch.tensor([1, 1, 2, 2]))
    soft = F.one_hot(torch.tensor([1, 1, 2, 2]), NUM_CLASSES).float()
    with pytest.raises(ValueError, match="splits differ"):
        mix(images, soft)
    with pytest.raises(ValueError, match="num_splits must be a whole number of at least 1, got 0"):
        PatchUp(timm.create_model("test_resnet"), num_splits=0)


@pytest.mark.parametrize("num_splits", [1, 2])
def test_jsd_of_other_splits_is_refused(num_splits: int, model: nn.Module) -> None:
    message = rf"^JsdCrossEntropy compares 3 splits of a batch, the mixer knows of {num_splits}: give num_splits=3"
    mix = PatchUp(model, prob=0.0, num_splits=num_splits)
    x, y = torch.randn(6, 3, 32, 32), torch.tensor([1, 2, 3]).repeat(2) if num_splits == 2 else torch.arange(6)
    mixed, target = mix(x, y)
    with pytest.raises(ValueError, match=message):
        mix.loss(model(mixed), target, JsdCrossEntropy(3))
    with pytest.raises(ValueError, match=message):
        MixTask(model, JsdCrossEntropy(3), mixer=mix, verbose=False)
