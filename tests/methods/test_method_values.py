"""Methods are values: frozen, comparable, hashable, printable, picklable and storable; settings and nothing else."""

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
import yaml

from timm_patchup import Method
from timm_patchup.core.method import make_method, method_settings, method_type
from timm_patchup.core.settings import Setting
from timm_patchup.errors import UserError, WrongType
from timm_patchup.methods.cutmix import CutMix, FeatureCutMix
from timm_patchup.methods.manifold_mixup import ManifoldMixup, Mixup
from timm_patchup.methods.patchup import HardPatchUp, SoftPatchUp

from .every_method import METHODS


def other_value(known: Setting) -> Any:
    """Return a legal value of a setting that is not its default."""
    if known.choices:
        return next(choice for choice in known.choices if choice != known.default)
    if bool in known.types:
        return not known.default
    if known.takes_several:
        return ["stem", "stage2"] if known.name == "sites" else [3, 5, 2, 4]
    top = known.high if known.high is not None else known.below
    if top is None or known.types == (int,):
        return known.default + 1
    return (known.default + top) / 2 if known.default != top else top / 4


def examples(name: str) -> list[Method]:
    """Return a method with its defaults, and once per setting with another value."""
    declared = method_settings(name)
    return [make_method(name), *(make_method(name, **{key: other_value(known)}) for key, known in declared.items())]


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_tells_methods_apart(name: str) -> None:
    values = examples(name)
    assert len(values) == len(method_settings(name)) + 1
    assert len(set(values)) == len(values), "hashable, and no two are equal"
    for i, one in enumerate(values):
        assert one == examples(name)[i]
        assert hash(one) == hash(examples(name)[i])
        assert all((one == other) == (i == j) for j, other in enumerate(values))


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_frozen(name: str) -> None:
    for method in examples(name):
        for key in (*(f.name for f in fields(method)), "anything"):
            with pytest.raises(FrozenInstanceError):
                setattr(method, key, 0.5)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_printed_makes_the_same_method_again(name: str) -> None:
    for method in examples(name):
        kind = type(method)
        assert eval(repr(method), {kind.__name__: kind}) == method
        for key, value in method.settings().items():
            assert f"{key}={tuple(value) if isinstance(value, list) else value!r}" in repr(method)


@pytest.mark.parametrize("name", METHODS)
def test_methods_can_be_pickled_and_copied(name: str) -> None:
    for method in examples(name):
        for twin in (pickle.loads(pickle.dumps(method)), copy.copy(method), copy.deepcopy(method), replace(method)):
            assert twin == method
            assert type(twin) is type(method) is method_type(name)
            assert twin.name == name


@pytest.mark.parametrize("name", METHODS)
def test_what_is_stored_makes_the_same_method_again(name: str) -> None:
    for method in examples(name):
        settings = method.settings()
        assert set(settings) == set(method_settings(name))
        assert make_method(name, **settings) == method
        for stored in (json.loads(json.dumps(settings)), yaml.safe_load(yaml.safe_dump(settings))):
            assert stored == settings
            assert make_method(name, **stored) == method


def test_methods_of_the_same_settings_differ() -> None:
    assert Mixup().settings() == CutMix().settings() | {"lam": "batch"}
    assert Mixup() != CutMix()
    assert FeatureCutMix() != ManifoldMixup(alpha=1.0)


def test_a_method_takes_lists_and_whole_numbers_for_what_they_mean() -> None:
    assert HardPatchUp(sites=["stem"], block_size=[3]) == HardPatchUp(sites=("stem",), block_size=(3,))  # type: ignore[arg-type]
    assert HardPatchUp(gamma=1) == HardPatchUp(gamma=1.0)
    assert isinstance(HardPatchUp(gamma=1).gamma, float)


def test_replace_checks_the_new_value() -> None:
    assert replace(SoftPatchUp(), gamma=0.5).settings() == SoftPatchUp().settings() | {"gamma": 0.5}
    with pytest.raises(UserError, match=r"^gamma must be a number in \[0, 1\], got 2$"):
        replace(SoftPatchUp(), gamma=2)
    with pytest.raises(WrongType, match=r"^gamma must be a number in \[0, 1\], got '0\.5'$"):
        replace(SoftPatchUp(), gamma="0.5")  # type: ignore[arg-type]


def test_all_wrong_settings_are_reported_together() -> None:
    with pytest.raises(UserError) as caught:
        HardPatchUp(prob=2, gamma="half", mask="samples", block_size=0)  # type: ignore[arg-type]
    assert sorted(caught.value.problems) == [
        "block_size must be a whole number of at least 1, got 0",
        "gamma must be a number in [0, 1], got 'half'",
        "mask must be one of batch, sample, got 'samples'; did you mean sample?",
        "prob must be a number in [0, 1], got 2",
    ]


def test_settings_have_names() -> None:
    with pytest.raises(TypeError, match="positional"):
        HardPatchUp(0.5)  # type: ignore[misc]
    with pytest.raises(TypeError, match="gama"):
        HardPatchUp(gama=0.5)  # type: ignore[call-arg]
