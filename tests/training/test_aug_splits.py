"""AugMix with the JSD loss and a method inside the network: a run resumes exactly, and every split counts."""

import shutil
from pathlib import Path

from accelerate import Accelerator
from timm.loss import JsdCrossEntropy

from tests.support.training import TINY, digests, train_here
from timm_patchup.data.loader import load_data, training_loader
from timm_patchup.recipe import load_recipe
from timm_patchup.training.learner import Learner

SPLITS = ["--aa", "augmix-m3-w3", "--aug-splits", "3", "--loss", "jsd", "--grad-accum-steps", "2"]


def test_resume_is_exact(tmp_path: Path) -> None:
    flags = [*TINY, *SPLITS, "--output", tmp_path, "--checkpoint-steps", 3, "--checkpoint-hist", 9]
    ended = train_here(*flags, "--experiment", "whole")
    assert ended.code == 0, ended.err
    shutil.copytree(tmp_path / "whole", tmp_path / "a")
    (tmp_path / "a" / "results.json").unlink()
    ended = train_here("--resume", tmp_path / "a" / "checkpoints" / "step-00000003", "--threads", 1)
    assert ended.code == 0, ended.err
    assert digests(tmp_path / "a") == digests(tmp_path / "whole")


def test_a_learner_mixes_all_splits_of_a_micro_batch_alike() -> None:
    keys = {"limit": 100, "batch_size": 20, "grad_accum_steps": 2, "aa": "augmix-m3-w3", "aug_splits": 3, "loss": "jsd"}
    recipe = load_recipe("fashion_mini_soft_patchup", keys)
    learner = Learner(recipe, Accelerator(cpu=True), updates_per_epoch=4)
    assert isinstance(learner.criterion, JsdCrossEntropy)
    assert learner.criterion.num_splits == learner.mixer.num_splits == 3
    loader, batches = training_loader(load_data(recipe).train, recipe, rank=0, world_size=1)
    batches.begin(epoch=0)
    learner.update(iter(loader), 0)
    assert learner.mixer.state_dict()["count"] == 2
    draw = learner.mixer.draw
    assert draw is not None
    own, second, third = draw.partner.chunk(3)
    assert (second - own).unique().tolist() == [10]
    assert (third - own).unique().tolist() == [20]
