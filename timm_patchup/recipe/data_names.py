"""Datasets by name: what ``data`` of an evaluation and ``timm_patchup.hub.fetch`` accept.

A name stands for a dataset, a benchmark or a recipe; what it stands for is read from ``recipes/``.
"""

from pathlib import Path
from typing import Any

from ..core.settings import AUTO
from ..errors import UserError, brief, nearest
from .compose import list_benchmarks, list_recipes, load_recipe, read_keys, read_recipe, recipes_dir
from .parts import DataSpec
from .schema import Recipe


def list_data() -> list[str]:
    """Return the names of the datasets that recipes use."""
    return [name for name, keys in _parts().items() if keys.get("dataset", AUTO) != AUTO]


def load_data_spec(name: str) -> DataSpec:
    """Return the data of a dataset name, a benchmark, a recipe or a YAML file.

    Raises:
        UserError: the name is unknown.

    Example:
        >>> load_data_spec("cifar10").dataset
        'hfds/uoft-cs/cifar10'
    """
    if name in list_data():
        return DataSpec.of(Recipe.from_dict(_parts()[name]))
    if name in list_benchmarks():
        return DataSpec.of(load_recipe(f"{name}_none"))
    if name in list_recipes() or Path(name).suffix in (".yaml", ".yml"):
        return DataSpec.of(read_recipe(name))
    hint = nearest(name, [*list_data(), *list_benchmarks()])
    raise UserError(f"unknown data {brief(name)}, choose from {', '.join(list_data())}{hint}")


def find_data_spec(dataset: str) -> DataSpec | None:
    """Return the data of a ``dataset`` key, None if no recipe uses it."""
    found = (keys for keys in _parts().values() if keys.get("dataset") == dataset != AUTO)
    return next((DataSpec.of(Recipe.from_dict(keys)) for keys in found), None)


def _parts() -> dict[str, dict[str, Any]]:
    paths = sorted((recipes_dir() / "parts").glob("*.yaml"))
    return {path.stem: read_keys(path).values for path in paths}
