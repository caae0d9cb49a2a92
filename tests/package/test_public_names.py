"""Public names: one import has all that a custom method needs, and old names still work for a release."""

import importlib
import subprocess
import sys

import pytest

import timm_patchup
from timm_patchup.core.method import list_methods, method_type


def test_the_classes_of_all_methods_are_public() -> None:
    built_in = [
        method_type(name) for name in list_methods() if method_type(name).__module__.startswith("timm_patchup.")
    ]
    assert len(built_in) >= 10
    for kind in built_in:
        assert getattr(timm_patchup, kind.__name__, None) is kind
        assert kind.__name__ in timm_patchup.__all__


def test_all_names_exist_and_are_sorted_once() -> None:
    assert sorted(set(timm_patchup.__all__), key=str) == timm_patchup.__all__
    for name in timm_patchup.__all__:
        assert hasattr(timm_patchup, name), name


def test_dir_shows_hub_without_importing_it() -> None:
    code = "import sys, timm_patchup; print('hub' in dir(timm_patchup), 'timm_patchup.hub' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr
    assert set(timm_patchup.__all__) < set(dir(timm_patchup))


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("timm_patchup.core.draw", "Place", "DrawContext"),
        ("timm_patchup.core.method", "Place", "DrawContext"),
    ],
)
def test_old_names_work_and_warn(module: str, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=new) as caught:
        found = getattr(importlib.import_module(module), old)
    assert found is getattr(timm_patchup, new)
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="Pluce"):
        _ = importlib.import_module(module).Pluce


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("core.draw", "Mix"),
        ("core.method", "SiteMethod"),
        ("core.settings", "setting"),
        ("methods.cutmix", "CutMix"),
        ("methods.patchup", "HardPatchUp"),
    ],
)
def test_names_that_were_documented_elsewhere_are_still_there(module: str, name: str) -> None:
    assert getattr(importlib.import_module(f"timm_patchup.{module}"), name) is getattr(timm_patchup, name)
