"""Examples in docstrings run and give what they show, unless they need the Hub, a finished run or another framework.

An example of a call on a model may use a model, a batch and a criterion, as a training loop has them.
"""

import doctest
import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import datasets
import pytest
import timm
import timm.task
import torch
from torch import nn

import timm_patchup
from timm_patchup.core import method
from timm_patchup.core.draw import Mix
from timm_patchup.core.method import SiteMethod
from timm_patchup.methods import cutmix, manifold_mixup, patchup

LAYERS = ("core", "data", "errors", "recipe", "study")


def examples() -> list[doctest.DocTest]:
    found: list[doctest.DocTest] = []
    for module in pkgutil.walk_packages(timm_patchup.__path__, "timm_patchup."):
        if module.name.split(".")[1] in LAYERS and not module.name.endswith("__main__"):
            found += doctest.DocTestFinder().find(importlib.import_module(module.name))
    return [test for test in found if test.examples]


EXAMPLES = examples()


@pytest.fixture
def names() -> dict[str, Any]:
    """What an example may use besides the names of its module."""
    modules: list[ModuleType] = [timm_patchup, cutmix, manifold_mixup, patchup]
    shown = {name: value for module in modules for name, value in vars(module).items() if isinstance(value, type)}
    model = timm.create_model("test_resnet", num_classes=10)
    batch = {"x": torch.randn(4, 3, 64, 64), "y": torch.randint(10, (4,)), "epoch": 0}
    libraries = {"timm": timm, "timm_patchup": timm_patchup, "torch": torch, "nn": nn, "datasets": datasets}
    own = {"Mix": Mix, "SiteMethod": SiteMethod, "dataclass": dataclass}
    return {**shown, **libraries, **own, **batch, "model": model, "criterion": nn.CrossEntropyLoss()}


def test_examples_are_found() -> None:
    assert len(EXAMPLES) >= 18
    assert {"PatchUp", "Mixer", "create_mixer", "register", "MixTask"} <= {
        test.name.split(".")[-1] for test in EXAMPLES
    }


@pytest.mark.parametrize("test", EXAMPLES, ids=lambda test: test.name.removeprefix("timm_patchup."))
def test_an_example_gives_what_it_shows(
    test: doctest.DocTest, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(method, "_METHODS", dict(method._METHODS))  # an example registers one
    report: list[str] = []
    test.globs.update(names | test.globs)
    try:
        doctest.DocTestRunner().run(test, out=report.append, clear_globs=False)
    finally:
        timm_patchup.unregister()
    assert not report, "".join(report)
