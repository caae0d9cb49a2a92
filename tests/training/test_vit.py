"""A Vision Transformer trains with our command, its tokens mixed; what cannot be mixed ends in one line of flags."""

import json
from pathlib import Path

import torch

from tests.support.training import Train

# 32 x 32 pixels in patches of 8: a grid of 4 x 4 tokens behind a class token.
VIT = ["--mix", "hard_patchup", "--mix-block-size", "2", "--mix-coverage", "exact", "--model", "vit_tiny_patch16_224"]
VIT += ["--model-kwargs", "img_size=32", "patch_size=8", "depth=4", "embed_dim=24", "num_heads=2"]


def test_a_recipe_trains_a_vit(train: Train, tmp_path: Path) -> None:
    ended = train("--experiment", "a", *VIT, "--mix-sites", "stem", "stage1", "stage3")
    assert ended.code == 0, ended.err
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert results["test"]["count"] == 100
    assert torch.isfinite(torch.tensor(results["test"]["error"]))


def test_sites_are_named_in_flags(train: Train) -> None:
    ended = train(*VIT, "patch_drop_rate=0.5")
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert "create the model with patch_drop_rate=0. Give mix_sites input stem, which can be mixed" in ended.err
