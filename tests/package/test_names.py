"""Names in the package: a class name stands once, types are nouns, and what only raises is named for it."""

import ast
import builtins
from collections import Counter

from tests.support.paths import ROOT

TREES = [ast.parse(path.read_text()) for path in sorted((ROOT / "timm_patchup").rglob("*.py"))]
CLASSES = [node for tree in TREES for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
# What a subclass, a change or a suite defines, and public methods of the mixer and of a schedule.
HOOKS = {"check", "check_sites", "check_model", "check_images", "check_options"}


def is_error(node: ast.ClassDef) -> bool:
    """Return whether a class derives from an exception, as far as names show it."""
    parents = [ast.unparse(parent) for parent in node.bases]
    built_in = any(
        issubclass(getattr(builtins, name, object), BaseException) for name in parents if name.isidentifier()
    )
    return built_in or any(is_error(other) for other in CLASSES if other.name in parents)


def test_a_class_name_stands_once() -> None:
    assert len(CLASSES) > 120
    assert [name for name, times in Counter(node.name for node in CLASSES).items() if times > 1] == []


def test_participles_are_no_names_for_types() -> None:
    """Errors may say what happened: ``Stopped``."""
    assert any(is_error(node) and node.name.endswith("ed") for node in CLASSES)
    assert [node.name for node in CLASSES if node.name.endswith("ed") and not is_error(node)] == []


def test_what_only_raises_is_not_named_check() -> None:
    functions = [node for tree in TREES for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    checks = [node for node in functions if node.name.lstrip("_").startswith("check")]
    only_raise = {node.name for node in checks if isinstance(node.returns, ast.Constant)}  # -> None
    assert len(checks) > 10
    assert only_raise == HOOKS
