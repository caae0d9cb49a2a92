"""Files that a user may have edited or a crash may have damaged, read with one clear line for whatever is wrong.

Every JSON and YAML file of a run, a report, an export or a study is read here.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError, brief, one_line
from .files import read_file

Kinds = type | tuple[type, ...]
_NAMES = {dict: "a mapping", list: "a list", str: "text", int: "a whole number", float: "a number"}
_NAMES |= {bool: "true or false", type(None): "none"}
_LARGEST = 64 << 20  # bytes; our files are never larger
_MOST_NODES = 100_000  # values in a YAML file, with those that its aliases repeat; our largest has 6,400


def read_json(path: Path, **keys: Kinds) -> dict[str, Any]:
    """Return the mapping in a JSON file; ``keys`` are those it must have, and their types.

    Raises:
        UserError: it is missing, empty, cut off or something else, or lacks a key.
    """
    text = read_text(path)
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {_reason(error)}") from None
    return check_keys(content, keys, where=str(path))


class _Reader(yaml.SafeLoader):
    """Reads YAML safely, and refuses what PyYAML accepts: a key given twice, of which it silently takes the last,
    and aliases that expand without end.
    """

    def get_single_node(self) -> yaml.Node | None:
        root = super().get_single_node()
        if isinstance(root, yaml.CollectionNode):
            self._expanded(root, {})
        return root

    def _expanded(self, node: yaml.Node, known: dict[int, int]) -> int:
        """Return how many nodes one stands for once its aliases are written out; ``known`` are those counted before."""
        if id(node) in known:
            if not known[id(node)]:
                raise yaml.constructor.ConstructorError(None, None, "an alias contains itself", node.start_mark)
            return known[id(node)]
        known[id(node)] = 0  # being counted
        inside = [one for pair in node.value for one in pair] if isinstance(node, yaml.MappingNode) else node.value
        count = 1
        for one in inside:
            count += self._expanded(one, known) if isinstance(one, yaml.CollectionNode) else 1
        if count > _MOST_NODES:
            problem = f"it has more than {_MOST_NODES} values with its aliases written out"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        known[id(node)] = count
        return count

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        for key in [key for key, _ in pairs if isinstance(key, yaml.ScalarNode)]:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {brief(key.value)} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        UserError: it is missing, not YAML, has a key twice, or aliases that expand without end.
    """
    return parse_yaml(read_text(path), where=str(path))


def parse_yaml(text: str, *, where: str) -> Any:
    """Return the content of YAML text; it raises the errors of ``read_yaml``, which name ``where`` it is from."""
    try:
        return yaml.load(text, _Reader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}{line}: not YAML: {one_line(getattr(error, 'problem', None) or error, 200)}") from None
    except (ValueError, RecursionError) as error:  # a date such as 2020-99-99, or brackets without end
        raise UserError(f"{where}: not YAML: {_reason(error)}") from None


def read_text(path: Path) -> str:
    """Return a text file; raise UserError if it is missing, cannot be read or is not text."""
    where = one_line(str(path), 300)
    try:
        is_small = path.stat().st_size <= _LARGEST
        text = read_file(path).decode() if is_small else ""
    except FileNotFoundError:
        raise UserError(f"no such file: {where}") from None
    except UnicodeDecodeError:
        raise UserError(f"{where} cannot be read: it is not text in UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in its name
        raise UserError(f"{where} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not is_small:
        raise UserError(f"{where} cannot be read: it has more than {_LARGEST >> 20} MB")
    return text


def check_keys(content: Any, keys: Mapping[str, Kinds], *, where: str) -> dict[str, Any]:
    """Return a mapping that has all keys with values of their types, or raise UserError."""
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UserError(f"{where} must be a mapping of names to values, got {_name(type(content))}")
    for key, kinds in keys.items():
        allowed = kinds if isinstance(kinds, tuple) else (kinds,)
        if key not in content:
            raise UserError(f"{where} is damaged or of another kind: it has no {key}")
        value = content[key]
        fits = isinstance(value, allowed) or (float in allowed and isinstance(value, int))
        if not fits or (isinstance(value, bool) and bool not in allowed):
            wanted = " or ".join(map(_name, allowed))
            raise UserError(f"{where}: {key} must be {wanted}, got {brief(value, 80)}")
    return content


def check_name(name: str, form: str, *, where: str) -> str:
    """Return the name of a file that a stored file gives; raise UserError unless all of it matches an expression.

    Every such name passes here before it is joined to a folder: joined unchecked, it could be a path to anywhere.
    """
    if re.fullmatch(form, name, re.ASCII) is None:
        raise UserError(f"{where}: {one_line(repr(name), 80)} is not the name of a file that belongs there")
    return name


def _name(kind: type) -> str:
    return _NAMES.get(kind, kind.__name__)


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else one_line(error, 120)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")
